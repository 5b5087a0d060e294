"""Reused batch buffers, and what ring, workers and device all do with batches."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from samebits.data.spec import Batch, Spec, empty_batch
from samebits.torch_private import storage_use_count

if TYPE_CHECKING:
    from samebits.data.loading.side_stream import Cuda

T = TypeVar("T")

_use_count = storage_use_count()


class Lease:
    """Memory that is given out again and again: free while nobody but `tensor` holds it.

        lease.tensor               -+
        a view, batch["x"][:rows]  -+-> storage, in C++, which counts its tensors -> memory
        an array, batch["x"].numpy(), which holds a view
        a storage object, batch["x"].untyped_storage(): Python's one object of it; its holders are in Python's count

    The two counts together were taken when the tensor was new, and tell whether somebody has come since.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._when_new = self._holders()

    def is_free(self) -> bool:
        return self._holders() == self._when_new

    def _holders(self) -> int:
        assert _use_count is not None
        storage = self.tensor.untyped_storage()
        return _use_count(storage._cdata) + sys.getrefcount(storage)


def counts_holders() -> bool:
    """Whether this torch counts as Lease needs it: a count that misses a holder would let a batch be written over."""
    if _use_count is None:
        return False
    try:
        lease = Lease(torch.empty(4))
        seen = [lease.is_free()]
        for hold in (lambda x: x[1:], lambda x: x.numpy(), lambda x: x.untyped_storage(), lambda x: x.view(2, 2)[0]):
            held = hold(lease.tensor)
            seen += [not lease.is_free()]
            del held
            seen += [lease.is_free()]
    except Exception:  # the function is private, and may take other arguments one day
        return False
    return all(seen)


CAN_REUSE = counts_holders()  # else every batch gets fresh memory


class _Slot:
    def __init__(self, spec: Spec, rows: int, cuda: Cuda | None) -> None:
        self.rows = rows
        self.tensors = empty_batch(spec, rows, torch.empty if cuda is None else cuda.empty)
        self._leases = [Lease(tensor) for tensor in self.tensors.values()] if CAN_REUSE else []
        self.copied: Any = None  # an event, recorded behind the copy to the GPU

    def free(self) -> bool:
        if self.copied is not None and not self.copied.query():
            return False
        return all(lease.is_free() for lease in self._leases)


class Slots:
    """A pool of buffers of one spec, page-locked by `cuda`. `allocated` counts how many were ever made."""

    def __init__(self, spec: Spec, most: int, cuda: Cuda | None = None) -> None:
        self._spec, self._cuda, self._most = spec, cuda, most
        self._slots: deque[_Slot] = deque()
        self._lock = threading.Lock()
        self.allocated = 0

    def take(self, rows: int) -> tuple[Batch, _Slot]:
        """Buffers (rows, ...) that nobody reads, by field. They stay taken while somebody holds them, or a view."""
        with self._lock:
            slot = next((slot for slot in self._slots if slot.rows >= rows and CAN_REUSE and slot.free()), None)
            if slot is None:
                slot = _Slot(self._spec, rows, self._cuda)
                self.allocated += 1
                if CAN_REUSE:
                    self._slots.append(slot)
                while len(self._slots) > self._most:
                    self._slots.popleft()  # its holders keep the memory; it is given back when they let go
            slot.copied = None
            return {name: tensor[:rows] for name, tensor in slot.tensors.items()}, slot


def drain(batches: list[T]) -> Iterator[T]:
    """Yields the items of the list, the last first, and keeps none. What a generator yields from a variable it holds
    until it is asked for the next: the consumer would let a batch go, and its buffer could not be used again."""
    while batches:
        yield batches.pop()


def split(batch: Batch, numbers: Tensor, sizes: list[int]) -> list[tuple[Batch, Tensor]]:
    """A batch cut into micro-batches of these sizes, the last first."""
    if len(sizes) == 1:
        return [(batch, numbers)]
    # "unsafe" as to autograd, for which the parts are then no views of one tensor: a write into one is none into others
    columns = [torch.unsafe_split_with_sizes(tensor, sizes) for tensor in (*batch.values(), numbers)]
    parts = zip(*map(reversed, columns), strict=True)
    return [(dict(zip(batch, values, strict=False)), values[-1]) for values in parts]


def indices_on(device: torch.device, values: np.ndarray) -> Tensor:
    """A copy of (B,) int64 on the device; nothing waits for it."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """For devices without side streams. Lists (of strings) stay where they are."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
