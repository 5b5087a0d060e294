"""Copies to a GPU on a stream of their own, beside what it computes.

host          page-locked memory -> copy enqueued on the side stream, an event behind it; goes on at once
GPU           the computing stream waits for the event before it reads the batch
host memory   is written again only when the event has passed
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.device import lock_pages, unlock_pages


class Cuda:
    """All that delivery asks of CUDA; tests give another one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self) -> Any:
        return torch.cuda.Stream(self.device)

    def computing(self) -> Any:
        """The stream on which this thread computes."""
        return torch.cuda.current_stream(self.device)

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def here(self) -> AbstractContextManager[Any]:
        """For a thread of its own: makes this GPU its current one."""
        return torch.cuda.device(self.device)

    def event(self) -> Any:
        return torch.cuda.Event()

    def copy(self, value: Tensor) -> Tensor:
        """Enqueue a copy of page-locked memory on the current stream."""
        return value.to(self.device, non_blocking=True)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Page-locked memory. torch gives it out again only when the copies from it are done."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def locked(self, value: Tensor) -> Tensor:
        """A copy of it in page-locked memory; itself where it lies there already, or on a GPU."""
        return value.pin_memory() if value.device.type == "cpu" else value

    def register(self, value: Tensor) -> None:
        """Page-lock memory that is there already, until `unregister`."""
        lock_pages(value)

    def unregister(self, value: Tensor) -> None:
        unlock_pages(value)


def locked_bytes(nbytes: int) -> int:
    """What torch page-locks for a tensor of so many bytes: the next power of two."""
    return 1 << max(0, nbytes - 1).bit_length()


class Sent(NamedTuple):
    """A batch on its way to the GPU. copied: the event behind its copy."""

    batch: dict[str, Tensor]
    numbers: Tensor
    copied: Any


class SideStream:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self._stream = cuda.stream()

    @classmethod
    def of(cls, device: torch.device) -> SideStream | None:
        """None where there are no streams (a CPU, mps)."""
        return cls(Cuda(device)) if device.type == "cuda" else None

    def send(self, batch: dict[str, Tensor], numbers: Tensor) -> Sent:
        """Enqueue the copies. Lists (of strings) stay on the host."""
        with self.cuda.use(self._stream):
            there = {k: self.cuda.copy(v) if isinstance(v, Tensor) else v for k, v in batch.items()}
            sent = Sent(there, self.cuda.copy(numbers), self.cuda.event())
            sent.copied.record(self._stream)
        return sent

    def receive(self, sent: Sent) -> tuple[dict[str, Tensor], Tensor]:
        """The batch, for the stream on which this thread computes."""
        computing = self.cuda.computing()
        computing.wait_event(sent.copied)
        for value in (*sent.batch.values(), sent.numbers):
            if isinstance(value, Tensor):  # allocated on the side stream: not to be given out before this one is done
                value.record_stream(computing)
        return sent.batch, sent.numbers
