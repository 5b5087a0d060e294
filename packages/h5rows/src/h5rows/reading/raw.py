"""What the raw ways stand on: a file read by offset, a cache of decoded chunks, work spread over the cores."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.reading.opening import Identity, check_same, is_remote
from h5rows.reading.opening import identity as identity_of

CORES_LIMIT = "H5ROWS_CORES"  # of the environment: threads that decode at most


class RawFile:
    """A file read by offset, and mapped; one for all fields, of all sets of this process. identity: of the file whose
    offsets are known.

    What was read counts once `check` has passed after it. Reading behind the end of a file that was cut short while it
    is mapped kills the process: SIGBUS."""

    def __init__(self, path: str, identity: Identity) -> None:
        self.path, self.identity = path, identity
        self._mapping: mmap.mmap | None = None
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:  # in a worker
            raise ConfigError(f"{path} is gone, which this run has open; put it back and start the run again") from None
        weakref.finalize(self, os.close, self.fd)
        check_same(path, identity, identity_of(self.fd))

    def __reduce__(self) -> Any:
        return RawFile, (self.path, self.identity)

    def check(self) -> None:
        now, (_, _, size, mtime) = os.fstat(self.fd), self.identity
        if now.st_size != size or now.st_mtime_ns != mtime:
            check_same(self.path, self.identity, identity_of(self.fd))

    def map(self) -> np.ndarray:
        """All bytes, read-only."""
        if self._mapping is None:
            self._mapping = mmap.mmap(self.fd, self.identity[2], access=mmap.ACCESS_READ)
        return np.frombuffer(self._mapping, np.uint8)

    def read(self, size: int, offset: int) -> bytes:
        parts, left = [], size
        while left:
            part = os.pread(self.fd, left, offset + size - left)
            if not part:
                raise ConfigError(f"{self.path} ends within a chunk at byte {offset}: it was cut short; write it again")
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def advise(self, offset: np.ndarray, size: np.ndarray) -> None:
        """Ask the kernel to read these extents, unless a few of them show that they are in memory."""
        probed = (offset + size // 2)[:: max(1, len(offset) // 8)]
        if not hasattr(os, "posix_fadvise") or all(map(self._in_memory, probed.tolist())):  # macOS has no such call
            return
        order = np.argsort(offset)
        begin, end = offset[order], (offset + size)[order]
        gap = np.flatnonzero(begin[1:] > end[:-1] + 65536) + 1  # nearer ones are cheaper together
        firsts, lasts = np.append(0, gap), np.append(gap, len(begin)) - 1
        for a, b in zip(begin[firsts].tolist(), np.maximum.accumulate(end)[lasts].tolist(), strict=True):
            os.posix_fadvise(self.fd, a, b - a, os.POSIX_FADV_WILLNEED)

    def _in_memory(self, at: int) -> bool:
        """False where the system cannot tell."""
        try:
            return os.preadv(self.fd, [bytearray(1)], at, os.RWF_NOWAIT) == 1
        except (AttributeError, OSError):
            return False


_files: weakref.WeakValueDictionary[tuple[int, str, Identity], RawFile] = weakref.WeakValueDictionary()


def raw_file(path: str, identity: Identity) -> Any:
    """The one that this process has, or a new one; a forked process opens its own."""
    if is_remote(path):
        from h5rows.reading.ranges import file_of  # brings what talks to servers

        return file_of(path)
    key = (os.getpid(), path, identity)
    file = _files.get(key)
    if file is None:
        file = _files[key] = RawFile(path, identity)
    return file


class ChunkCache:
    """Decoded chunks, the least recently used dropped first; each is decoded once even if several threads want it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reset()

    def __reduce__(self) -> Any:
        return ChunkCache, (self.max_bytes,)

    def _reset(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._chunks: OrderedDict[Any, tuple[Future[np.ndarray], int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Any, size: int, decode: Callable[[], np.ndarray]) -> np.ndarray:
        if self._pid != os.getpid():
            self._reset()  # forked: the lock may be held by a thread that does not exist here
        if size > self.max_bytes:
            return decode()
        with self._lock:
            found = self._chunks.get(key)
            if found is None:
                future: Future[np.ndarray] = Future()
                self._chunks[key] = (future, size)
                self._bytes += size
                while self._bytes > self.max_bytes:
                    self._bytes -= self._chunks.popitem(last=False)[1][1]
            else:
                self._chunks.move_to_end(key)
                future = found[0]
        if found is None:
            try:
                future.set_result(decode())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._bytes -= self._chunks.pop(key, (None, 0))[1]
        return future.result()


_pool: tuple[int, ThreadPoolExecutor] | None = None


def cores() -> int:
    """Threads that may decode: the cores of this process, at most H5ROWS_CORES and the container's limit."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [here, *_container_cores()]
    if (named := os.environ.get(CORES_LIMIT, "")).isdecimal():
        limits.append(int(named))
    return max(1, min(limits))


@cache  # called at each read, and a process stays in its container
def _container_cores() -> tuple[int, ...]:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return (int(quota) // int(period),)
    except (OSError, ValueError):  # no such file, or "max"
        return ()


def spread(work: Callable[[Any], None], items: Sequence[Any], nbytes: int) -> None:
    """work(item) for each item, by all cores if there is enough of it."""
    global _pool
    threads = min(cores(), len(items), nbytes >> 18)
    if threads > 1:
        if _pool is None or _pool[0] != os.getpid():  # threads do not survive a fork
            _pool = (os.getpid(), ThreadPoolExecutor(cores(), "decode"))
        others = [_pool[1].submit(_each, work, items[k::threads]) for k in range(1, threads)]
        _each(work, items[0::threads])
        for other in others:
            other.result()
    else:
        _each(work, items)


def _each(work: Callable[[Any], None], items: Sequence[Any]) -> None:
    for item in items:
        work(item)
