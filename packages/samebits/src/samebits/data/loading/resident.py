"""Keep the complete data set on the device (or in RAM, if the device is a CPU), and select batches there.

A step reads nothing and uses no threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.data.loading.ring import GROUP_MOST
from samebits.data.loading.slots import Slots, indices_on, split
from samebits.data.order import Plan
from samebits.data.spec import Batch, empty_batch, sample_bytes

_LOAD_BYTES = 64 * 1024 * 1024  # per read while the set is loaded
_GROUP_BYTES = 1024 * 1024  # small micro-batches are selected together, up to this size; the loop waits for it
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_GROUP_ROWS = 16384  # rows whose indices are copied to the device together


class Resident:
    """A source of batches. The first `stream` loads the data set."""

    def __init__(self, dataset: Any, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        self._held: Batch | None = None
        self._row_bytes = sample_bytes(dataset.spec)
        self._slots = Slots(dataset.spec, most=4) if device.type == "cpu" else None

    def _load(self) -> Batch:
        size, spec = len(self.dataset), self.dataset.spec
        with torch.inference_mode(False):
            held = empty_batch(spec, size, partial(torch.empty, device=self.device))
            row_bytes = sum(v[:1].nbytes for v in held.values())
            step = max(1, _LOAD_BYTES // max(1, row_bytes))
            for begin in range(0, size, step):
                rows = np.arange(begin, min(begin + step, size), dtype=np.int64)
                part = {field: value[begin : begin + step] for field, value in held.items()}
                if self.device.type == "cpu":
                    self.dataset.gather(rows, part)
                    continue
                host = empty_batch(spec, len(rows))
                self.dataset.gather(rows, host)
                for field, value in part.items():
                    value.copy_(host[field])
        return held

    def stream(self, plan: Plan) -> Iterator[list[tuple[Batch, Tensor]]]:
        """Yield lists of (micro-batch, its sample ids) on the device, in reverse order, until the plan ends."""
        if self._held is None:
            self._held = self._load()
        k = 0
        while found := self._parts(plan, k):
            sizes = [len(sample_ids) for sample_ids, _ in found]
            sample_ids, rows = (indices_on(self.device, np.concatenate(arrays)) for arrays in zip(*found, strict=True))
            k += len(found)
            group = min(max(1, _GROUP_BYTES // max(1, self._row_bytes * max(sizes))), GROUP_MOST)
            begin = 0
            for i in range(0, len(sizes), group):
                part = sizes[i : i + group]
                end = begin + sum(part)
                yield split(self._index(self._held, rows[begin:end]), sample_ids[begin:end], part)
                begin = end

    def _index(self, held: Batch, rows: Tensor) -> Batch:
        if self._slots is None:
            return {field: _bits(value).index_select(0, rows).view(value.dtype) for field, value in held.items()}
        batch, _ = self._slots.take(len(rows))  # new memory on a CPU costs several times as much as the copy
        for field, value in held.items():
            torch.index_select(_bits(value), 0, rows, out=_bits(batch[field]))
        return batch

    def _parts(self, plan: Plan, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the plan's micro-batches from k on, up to _GROUP_ROWS rows."""
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        count = 0
        while count < _GROUP_ROWS and (part := plan(k + len(parts))) is not None:
            parts.append(part)
            count += len(part[0])
        return parts

    def close(self) -> None:
        """Release the data set."""
        self._held = None


def _bits(values: Tensor) -> Tensor:
    """Return the same memory as a signed type: torch has few operations for uint16, uint32 and uint64."""
    return values.view(_SIGNED[values.dtype]) if values.dtype in _SIGNED else values
