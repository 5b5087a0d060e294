"""PyTorch's DataLoader with persistent workers, for datasets with their own `collate`: samples whose shapes vary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from engine.data.loading.samples import seed_sample
from engine.data.loading.side_stream import SideStream
from engine.data.loading.slots import Batch, to_device
from engine.data.loading.worker import belong_to_the_run
from engine.data.order import Plan


class _Samples:
    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: tuple[int, int]) -> tuple[int, Any]:
        number, row = index
        seed_sample(self._seed, number)
        return number, self._dataset[row]


class _Collate:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, samples: list[tuple[int, Any]]) -> tuple[Batch, Tensor]:
        numbers = torch.tensor([number for number, _ in samples])
        return dict(self._dataset.collate([sample for _, sample in samples])), numbers


class _Batches:
    """The plan as DataLoader's batch sampler."""

    plan: Plan

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        k = 0
        while (part := self.plan(k)) is not None:
            yield list(zip(part[0].tolist(), part[1].tolist(), strict=True))
            k += 1


class TorchLoader:
    def __init__(
        self, dataset: Any, device: torch.device, seed: int, num_workers: int, start_method: str | None
    ) -> None:
        self.device, self.num_workers, self._batches = device, num_workers, _Batches()
        self._loader: Any = DataLoader(
            _Samples(dataset, seed),  # type: ignore[arg-type]
            batch_sampler=self._batches,  # type: ignore[arg-type]
            num_workers=num_workers,
            collate_fn=_Collate(dataset),
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(belong_to_the_run, threading.current_thread() is threading.main_thread()),
            multiprocessing_context=start_method,
            persistent_workers=True,
        )

    def stream(self, plan: Plan) -> Iterator[tuple[Batch, Tensor]]:
        """(micro-batch, its sample numbers) on the device, in order, until the plan ends."""
        if self._loader is None:
            raise RuntimeError("this loader is closed")
        self._batches.plan = plan
        side = SideStream.of(self.device)
        for batch, numbers in self._loader:
            if side is None:
                yield to_device(batch, self.device), numbers.to(self.device)
            else:  # a thread of PyTorch's has page-locked them
                yield side.receive(side.send(batch, numbers))

    def close(self) -> None:
        """End the workers; safe to call twice."""
        self._loader = None  # its iterator ends them when nobody holds it any more
