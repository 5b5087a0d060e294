"""Save in the background: copy the state in host memory, and write the copy in a thread while training continues.

    main thread   copy, ready = copies.of(payload)    one memcpy, into memory that is reused from save to save
    thread        serialize, checksum, fsync, rename, delete outdated checkpoints

This is a thread because a process with threads or a CUDA context cannot be forked. It holds the GIL while it pickles
the structure of the payload; writing, checksums and fsync release the GIL.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from samebits.device import lock_pages, unlock_pages
from samebits.errors import RunFailed, first_line
from samebits.shards import empty_like, is_dtensor

ALIGNED = 64  # bytes: the copy of each storage starts at a multiple of this


class Copies:
    """Hold the copy of a payload in host memory, which the next copy reuses. Copies of GPU tensors are page-locked."""

    def __init__(self) -> None:
        self._memory: dict[bool, Tensor] = {}  # whether it is page-locked -> uint8
        self._locking = Background()

    def prepare(self, payload: Any) -> None:
        """Start a thread that allocates the page-locked memory for a copy of this payload."""
        size = bytes_of(payload)[True]
        if size:
            self._locking.start(lambda: self._room(True, size))

    @torch.no_grad()
    def of(self, payload: Any) -> tuple[Any, Callable[[], None]]:
        """Return (a copy of the payload, a function that waits until the device has filled it).

        The previous copy is overwritten. Tensors that share memory also share it in the copy, so that torch.save
        writes the same bytes. Raise RunFailed if there is not enough memory.
        """
        self._locking.wait()
        for locked, size in bytes_of(payload).items():
            self._room(locked, size)
        copier = Copier(self._memory)
        content = copier.copy_value(payload)
        return content, copier.fill()

    def _room(self, locked: bool, size: int) -> None:
        held = self._memory.get(locked)
        if size <= (0 if held is None else held.numel()):
            return
        try:
            if held is not None and locked:
                unlock_pages(self._memory.pop(locked))
            self._memory[locked] = new = torch.empty(size, dtype=torch.uint8)
            if locked:
                lock_pages(new)
        except RuntimeError as error:
            raise RunFailed(
                f"process.save_async=true: the copy of a checkpoint cannot be allocated: {first_line(error)} - "
                "set process.save_async=false, which saves without a copy"
            ) from error


def bytes_of(payload: Any) -> dict[bool, int]:
    """Return {page-locked: bytes} of the payload's storages, each counted once. Key True: storages on a GPU."""
    seen: set[tuple[torch.device, int]] = set()
    total = {True: 0, False: 0}
    for storage in _storages(payload):
        key = (storage.device, storage.data_ptr())
        if key not in seen:
            seen.add(key)
            total[storage.device.type == "cuda"] += _rounded(storage.nbytes())
    return total


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    if is_plain(value):
        yield (value.to_local() if is_dtensor(value) else value).untyped_storage()
    elif isinstance(value, dict) or type(value) in (list, tuple):
        for held in value.values() if isinstance(value, dict) else value:
            yield from _storages(held)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


class Copier:
    """Copy a payload into `memory`: first create the tensors, then `fill` copies each storage once."""

    def __init__(self, memory: dict[bool, Tensor]) -> None:
        self._memory = memory
        self._used = {True: 0, False: 0}
        self._copies: dict[tuple[torch.device, int], Tensor] = {}  # storage's address -> its copy, uint8
        self._pairs: list[tuple[Tensor, Tensor]] = []  # (copy, source), uint8

    def copy_value(self, value: Any) -> Any:
        """Return a copy of any value. The data of its tensors are copied by `fill`."""
        if is_plain(value):
            return self.copy_tensor(value)
        if isinstance(value, dict):
            new = copy.copy(value)  # keep the class: a model's state dict has attributes
            new.update((key, self.copy_value(held)) for key, held in value.items())
            return new
        if type(value) in (list, tuple):
            return type(value)(map(self.copy_value, value))
        return copy.deepcopy(value)

    def copy_tensor(self, value: Tensor) -> Tensor:
        """Return a tensor on the CPU with the same shape and strides; `fill` copies its data."""
        if is_dtensor(value):
            shard: Tensor = empty_like(value, device="cpu")  # allocates no memory until it is written to
            shard._local_tensor = self.copy_tensor(value.to_local())  # type: ignore[attr-defined]
            return shard
        storage = value.untyped_storage()
        if not storage.nbytes():
            return torch.empty_like(value, device="cpu")
        key = (value.device, storage.data_ptr())
        if key not in self._copies:
            locked, size = value.device.type == "cuda", storage.nbytes()
            # a separate storage, so that torch.save does not write the whole memory
            memory, at = self._memory[locked].numpy(), self._used[locked]
            self._copies[key] = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at)
            self._used[locked] += _rounded(size)
            source = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            self._pairs.append((self._copies[key], source))
        own = torch.empty(0, dtype=value.dtype)
        return own.set_(self._copies[key].untyped_storage(), value.storage_offset(), value.size(), value.stride())

    def fill(self) -> Callable[[], None]:
        """Copy the storages. Return a function that waits for the copies from a GPU."""
        for target, source in self._pairs:
            if source.device.type == "cpu":
                target.numpy()[:] = source.numpy()  # memcpy: torch's threads are slow if they share cores
            else:
                target.copy_(source, non_blocking=source.is_cuda)
        if not any(source.is_cuda for _, source in self._pairs):
            return lambda: None
        copied = torch.cuda.Event()
        copied.record()  # type: ignore[no-untyped-call]
        return copied.synchronize


def is_plain(value: Any) -> bool:
    """Whether a tensor is fully described by its storage, offset, shape and strides."""
    kind = type(value) in (Tensor, torch.nn.Parameter) or (isinstance(value, Tensor) and is_dtensor(value))
    return kind and value.layout == torch.strided and not (value.is_quantized or value.is_conj() or value.is_neg())


class Work(threading.Thread):
    """A thread that does one piece of work and keeps its error.

    awaited: whether the main thread waits for it; the hang watchdog (samebits.world) then prints its stack.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="saving")  # not a daemon: the process must not exit during a collective
        self._work, self.awaited = work, False
        self._gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work; store its exception in `error`."""
        try:
            if self._gpu is not None:  # a new thread uses GPU 0, and all ranks would allocate memory there
                torch.cuda.set_device(self._gpu)
            self._work()
        except BaseException as error:
            self.error = error


class Background:
    """Do one piece of work at a time in a thread. `check` and `wait` raise its error in the main thread."""

    def __init__(self) -> None:
        self._thread: Work | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start the work in a thread, after the previous work is done."""
        self.wait()
        self._thread = Work(work)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of work that has failed. Do not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the work is done. Raise its error."""
        if self._thread is None:
            return
        self._thread.awaited = True
        self._thread.join()
        error, self._thread = self._thread.error, None
        if error is not None:
            raise error
