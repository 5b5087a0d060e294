"""Reused batch buffers, and functions on batches that ring, workers and resident share."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from samebits.data.spec import Batch, Spec, empty_batch
from samebits.torch_private import storage_use_count

if TYPE_CHECKING:
    from samebits.data.loading.side_stream import Cuda

_use_count = storage_use_count()


class Lease:
    """Memory that is lent to a batch, and reused for a later one: free if nothing except `tensor` refers to it.

        lease.tensor               -+
        a view, batch["x"][:rows]  -+-> storage in C++, which counts its tensors -> memory
        an array, batch["x"].numpy(), which refers to a view
        a storage object, batch["x"].untyped_storage(): Python has one per storage, and counts the references to it

    The two counts are read when the tensor is new; later a larger sum shows that the memory is in use.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._when_new = self._holders()

    def is_free(self) -> bool:
        """Return True if only `tensor` refers to the memory."""
        return self._holders() == self._when_new

    def _holders(self) -> int:
        assert _use_count is not None
        storage = self.tensor.untyped_storage()
        return _use_count(storage._cdata) + sys.getrefcount(storage)


def counts_holders() -> bool:
    """Return True if this torch counts references as Lease needs it. A missed reference would let a batch be
    overwritten."""
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
    except Exception:  # the function is private: its arguments may change
        return False
    return all(seen)


CAN_REUSE = counts_holders()  # otherwise each batch gets new memory


class _Slot:
    def __init__(self, spec: Spec, rows: int, cuda: Cuda | None) -> None:
        self.rows = rows
        self.tensors = empty_batch(spec, rows, torch.empty if cuda is None else cuda.empty)
        self._leases = [Lease(tensor) for tensor in self.tensors.values()] if CAN_REUSE else []
        self.copied: Any = None  # the event after the copy to the GPU

    def free(self) -> bool:
        """Return True if the buffers can be written: nothing refers to them, and the copy to the GPU is done."""
        if self.copied is not None and not self.copied.query():
            return False
        return all(lease.is_free() for lease in self._leases)


class Slots:
    """A pool of buffers of one spec, in page-locked memory if `cuda` is given. `allocated`: number of buffers ever
    made."""

    def __init__(self, spec: Spec, most: int, cuda: Cuda | None = None) -> None:
        self._spec, self._cuda, self._most = spec, cuda, most
        self._slots: deque[_Slot] = deque()
        self._lock = threading.Lock()
        self.allocated = 0

    def take(self, rows: int) -> tuple[Batch, _Slot]:
        """Return (unused buffers (rows, ...) by field, their slot). They are taken until no reference to them or a view
        exists."""
        with self._lock:
            slot = next((slot for slot in self._slots if slot.rows >= rows and CAN_REUSE and slot.free()), None)
            if slot is None:
                slot = _Slot(self._spec, rows, self._cuda)
                self.allocated += 1
                if CAN_REUSE:
                    self._slots.append(slot)
                while len(self._slots) > self._most:
                    self._slots.popleft()  # its memory is freed with the last reference
            slot.copied = None
            return {name: tensor[:rows] for name, tensor in slot.tensors.items()}, slot


def split(batch: Batch, sample_ids: Tensor, sizes: list[int]) -> list[tuple[Batch, Tensor]]:
    """Divide a batch into micro-batches of these sizes and return them in reverse order."""
    if len(sizes) == 1:
        return [(batch, sample_ids)]
    # "unsafe" means that autograd does not treat the parts as views of one tensor, so writing to one is allowed
    columns = [torch.unsafe_split_with_sizes(tensor, sizes) for tensor in (*batch.values(), sample_ids)]
    parts = zip(*map(reversed, columns), strict=True)
    return [(dict(zip(batch, values, strict=False)), values[-1]) for values in parts]


def indices_on(device: torch.device, values: np.ndarray) -> Tensor:
    """Return a copy of (B,) int64 on the device, without waiting for it."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device without side streams. Lists (of strings) stay where they are."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
