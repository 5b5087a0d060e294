"""Deliver micro-batches to the loop.

A dataset is one of two kinds:

- `BatchDataset`: `spec` (shape and dtype of one sample, by field) and `gather(rows, out)`, which fills buffers that the
  loader owns and reuses. No per-sample Python; read from threads.
- any map-style dataset whose `__getitem__(i)` returns a dict of tensors, arrays or numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lab.data.order import Plan

Batch = dict[str, Tensor]
# transform(batch, numbers): whole batches on the device; numbers are the (B,) global sample numbers that seed randomness
Transform = Callable[[Batch, Tensor], Batch]


class BatchDataset(Protocol):
    spec: dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> (shape of one sample, dtype)

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray, out: Batch) -> None:
        """Write sample rows[i] into out[field][i] for every field; rows: (B,) int64. Safe from several threads."""
        ...


class Loader:
    """Micro-batches of this rank, on `device`, transformed. `wait_s`: seconds the consumer has waited for data."""

    def __init__(
        self,
        dataset: Any,
        plan: Plan,
        device: torch.device,
        transform: Transform | None = None,
        kind: str = "auto",
        num_workers: int | str = "auto",
    ) -> None:
        self.dataset, self.plan, self.device, self.transform = dataset, plan, device, transform
        self.wait_s = 0.0

    def __iter__(self) -> Iterator[Batch]:
        k = 0
        while True:
            began = time.perf_counter()
            part = self.plan(k)
            if part is None:
                return
            numbers, rows = part
            batch = {
                field: torch.empty((len(rows), *shape), dtype=dtype) for field, (shape, dtype) in self.dataset.spec.items()
            }
            self.dataset.gather(rows, batch)
            batch = {field: value.to(self.device, non_blocking=True) for field, value in batch.items()}
            if self.transform is not None:
                batch = self.transform(batch, torch.from_numpy(numbers).to(self.device))
            self.wait_s += time.perf_counter() - began
            k += 1
            yield batch

    def close(self) -> None:
        """End threads and workers; safe to call twice."""
