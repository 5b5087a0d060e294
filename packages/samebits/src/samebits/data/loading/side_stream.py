"""Copy batches to a GPU on a separate CUDA stream, in the background.

host          enqueues the copy from page-locked memory on the side stream, and an event after it; does not wait
GPU           the computing stream waits for the event before it reads the batch
host memory   is written again only after the event has passed
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.device import lock_pages, unlock_pages


class Cuda:
    """The CUDA operations that loading needs; tests replace it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self) -> Any:
        """Return a new stream."""
        return torch.cuda.Stream(self.device)

    def computing(self) -> Any:
        """Return the stream on which this thread computes."""
        return torch.cuda.current_stream(self.device)

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which `stream` is the current stream."""
        return torch.cuda.stream(stream)

    def here(self) -> AbstractContextManager[Any]:
        """Return a context in which this GPU is the current one, for a new thread."""
        return torch.cuda.device(self.device)

    def event(self) -> Any:
        """Return a new event."""
        return torch.cuda.Event()

    def copy(self, value: Tensor) -> Tensor:
        """Enqueue a copy of page-locked memory on the current stream."""
        return value.to(self.device, non_blocking=True)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return page-locked memory. torch reuses it only when all copies from it are done."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def locked(self, value: Tensor) -> Tensor:
        """Return a copy in page-locked memory; the tensor itself if it is page-locked already or on a GPU."""
        return value.pin_memory() if value.device.type == "cpu" else value

    def register(self, value: Tensor) -> None:
        """Page-lock existing memory until `unregister`."""
        lock_pages(value)

    def unregister(self, value: Tensor) -> None:
        """Undo `register`."""
        unlock_pages(value)


def locked_bytes(nbytes: int) -> int:
    """Return how many bytes torch page-locks for a tensor of `nbytes`: the next power of two."""
    return 1 << max(0, nbytes - 1).bit_length()


class Sent(NamedTuple):
    """A batch that is being copied to the GPU. copied: the event after its copy."""

    batch: dict[str, Tensor]
    sample_ids: Tensor
    copied: Any


class SideStream:
    """A CUDA stream for copies to the GPU."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self._stream = cuda.stream()

    @classmethod
    def of(cls, device: torch.device) -> SideStream | None:
        """Return a side stream for the device; None if it is not a CUDA device."""
        return cls(Cuda(device)) if device.type == "cuda" else None

    def send(self, batch: dict[str, Tensor], sample_ids: Tensor) -> Sent:
        """Enqueue the copies. Lists (of strings) stay on the host."""
        with self.cuda.use(self._stream):
            there = {k: self.cuda.copy(v) if isinstance(v, Tensor) else v for k, v in batch.items()}
            sent = Sent(there, self.cuda.copy(sample_ids), self.cuda.event())
            sent.copied.record(self._stream)
        return sent

    def receive(self, sent: Sent) -> tuple[dict[str, Tensor], Tensor]:
        """Return the batch and its sample ids, for use on the stream on which this thread computes."""
        computing = self.cuda.computing()
        computing.wait_event(sent.copied)
        for value in (*sent.batch.values(), sent.sample_ids):
            if isinstance(value, Tensor):  # allocated on the side stream: not reused before this stream is done
                value.record_stream(computing)
        return sent.batch, sent.sample_ids
