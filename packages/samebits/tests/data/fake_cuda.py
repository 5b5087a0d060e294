"""A GPU that runs its streams as late as it may, or at random, for tests of the order of copies, events and waits."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from samebits.data.loading.side_stream import Cuda


class Stream:
    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu
        self.ops: list[Any] = []
        self.done = 0

    def wait_event(self, event: Event) -> None:
        stream, at = event.stream, event.at
        self.ops.append(lambda: stream.run(at))

    def run(self, until: int) -> None:
        with self.gpu.lock:
            while self.done < until:
                op, self.ops[self.done] = self.ops[self.done], None
                self.done += 1
                op()


class Event:
    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, len(stream.ops)

    def query(self) -> bool:
        if self.gpu.random.random() < 0.3:
            self.stream.run(min(self.stream.done + 1, self.at))
        return self.stream.done >= self.at

    def synchronize(self) -> None:
        self.stream.run(self.at)


class There(Tensor):
    """Memory of the GPU."""

    gpu: FakeCuda

    def record_stream(self, stream: Any) -> None:
        self.gpu.recorded.add((self.untyped_storage().data_ptr(), id(stream)))


class FakeCuda(Cuda):
    """Copies read the host's memory by its address, when the stream comes to them: nothing keeps it as it was."""

    def __init__(self, seed: int) -> None:
        super().__init__(torch.device("cpu"))
        self.random, self.lock, self.here_now = random.Random(seed), threading.RLock(), threading.local()
        self.main = Stream(self)
        self.pending: list[int] = []  # addresses that copies have yet to read
        self.recorded: set[tuple[int, int]] = set()
        self.memory: list[Tensor] = []  # page-locked, and what lies on the GPU
        self.registered: list[Tensor] = []
        self.unlocked = 0  # copies from other memory

    def stream(self) -> Any:
        return Stream(self)

    def computing(self) -> Any:
        return self.main

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        self.here_now.stream = stream
        try:
            yield
        finally:
            self.here_now.stream = self.main

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def event(self) -> Any:
        return Event(self)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.memory.append(torch.empty(shape, dtype=dtype))
        return self.memory[-1]

    def locked(self, value: Tensor) -> Tensor:
        return self.empty(tuple(value.shape), value.dtype).copy_(value)

    def register(self, value: Tensor) -> None:
        self.registered.append(value)

    def unregister(self, value: Tensor) -> None:
        first = value.data_ptr()
        assert not any(first <= address < first + value.nbytes for address in self.pending), "copies still read it"
        self.registered = [other for other in self.registered if other is not value]

    def copy(self, value: Tensor) -> Tensor:
        there = torch.full_like(value, 77).as_subclass(There)
        there.gpu = self  # type: ignore[attr-defined]
        there_at, here_at, nbytes = there.data_ptr(), value.data_ptr(), value.nbytes
        assert value.is_contiguous()
        held = None if self._is_locked(here_at) else value

        def run(held: Any = held) -> None:
            ctypes.memmove(there_at, here_at, nbytes)
            self.pending.remove(here_at)

        with self.lock:
            self.unlocked += held is not None
            self.memory.append(there)
            self.pending.append(here_at)
            self.here_now.stream.ops.append(run)
        return there

    def _is_locked(self, address: int) -> bool:
        with self.lock:
            return any(0 <= address - t.data_ptr() < max(1, t.nbytes) for t in (*self.registered, *self.memory))

    def read(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """A kernel that computes with them: what it has seen is there after `finish`."""
        seen = {name: torch.empty_like(value).as_subclass(Tensor) for name, value in values.items()}
        held = {name: value.as_subclass(Tensor) for name, value in values.items()}
        self.main.ops.append(lambda: [seen[name].copy_(value) for name, value in held.items()])
        return seen

    def finish(self) -> None:
        self.main.run(len(self.main.ops))
