"""Read files by offset, cache decoded chunks, and spread work over the cores."""

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

CORES_LIMIT = "H5ROWS_CORES"  # environment variable: most threads that decode


class RawFile:
    """A file that is read by offset, and mapped; shared by all fields and data sets of this process.

    identity: of the file whose offsets are known. Data are valid only if `check` passes after they were read. Reading a
    mapped file that was truncated kills the process with SIGBUS.
    """

    def __init__(self, path: str, identity: Identity) -> None:
        self.path, self.identity = path, identity
        self._mapping: mmap.mmap | None = None
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:  # opened again in a worker
            raise ConfigError(f"{path} was removed during this run; restore it and start the run again") from None
        weakref.finalize(self, os.close, self.fd)
        check_same(path, identity, identity_of(self.fd))

    def __reduce__(self) -> Any:
        return RawFile, (self.path, self.identity)

    def check(self) -> None:
        """Raise ConfigError if the file has changed since its offsets were read."""
        now, (_, _, size, mtime) = os.fstat(self.fd), self.identity
        if now.st_size != size or now.st_mtime_ns != mtime:
            check_same(self.path, self.identity, identity_of(self.fd))

    def map(self) -> np.ndarray:
        """Return all bytes as a read-only array."""
        if self._mapping is None:
            self._mapping = mmap.mmap(self.fd, self.identity[2], access=mmap.ACCESS_READ)
        return np.frombuffer(self._mapping, np.uint8)

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset. Raise ConfigError if the file ends before."""
        parts, left = [], size
        while left:
            part = os.pread(self.fd, left, offset + size - left)
            if not part:
                raise ConfigError(f"{self.path} ends within a chunk at byte {offset}: it was truncated; write it again")
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def advise(self, offset: np.ndarray, size: np.ndarray) -> None:
        """Ask the kernel to read these extents, unless a sample of them is in memory already. offset, size: (n,)
        int64."""
        probed = (offset + size // 2)[:: max(1, len(offset) // 8)]
        if not hasattr(os, "posix_fadvise") or all(map(self._in_memory, probed.tolist())):  # macOS lacks this call
            return
        order = np.argsort(offset)
        begin, end = offset[order], (offset + size)[order]
        gap = np.flatnonzero(begin[1:] > end[:-1] + 65536) + 1  # closer ones are cheaper in one call
        firsts, lasts = np.append(0, gap), np.append(gap, len(begin)) - 1
        for a, b in zip(begin[firsts].tolist(), np.maximum.accumulate(end)[lasts].tolist(), strict=True):
            os.posix_fadvise(self.fd, a, b - a, os.POSIX_FADV_WILLNEED)

    def _in_memory(self, at: int) -> bool:
        """Return True if a byte is in memory; False if not, or if the system cannot tell."""
        try:
            return os.preadv(self.fd, [bytearray(1)], at, os.RWF_NOWAIT) == 1
        except (AttributeError, OSError):
            return False


_files: weakref.WeakValueDictionary[tuple[int, str, Identity], RawFile] = weakref.WeakValueDictionary()


def raw_file(path: str, identity: Identity) -> Any:
    """Return this process's RawFile, or a RangedFile for a URL; a forked process opens its own."""
    if is_remote(path):
        from h5rows.reading.ranges import file_of  # imports the network code only if needed

        return file_of(path)
    key = (os.getpid(), path, identity)
    file = _files.get(key)
    if file is None:
        file = _files[key] = RawFile(path, identity)
    return file


class ChunkCache:
    """A cache of decoded chunks that drops the least recently used first; each chunk is decoded once, also if several
    threads need it."""

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
        """Return a chunk from the cache, or decode it. size: its bytes; larger chunks than the cache are not kept."""
        if self._pid != os.getpid():
            self._reset()  # after a fork, the lock may belong to a thread that does not exist here
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
    """Return the number of threads that may decode: the cores of this process, at most H5ROWS_CORES and the container's
    limit."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [here, *_container_cores()]
    if (named := os.environ.get(CORES_LIMIT, "")).isdecimal():
        limits.append(int(named))
    return max(1, min(limits))


@cache  # called at each read, and constant for a process
def _container_cores() -> tuple[int, ...]:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return (int(quota) // int(period),)
    except (OSError, ValueError):  # no such file, or "max"
        return ()


def run_in_threads(work: Callable[[Any], None], items: Sequence[Any], nbytes: int) -> None:
    """Call work(item) for each item, in several threads if there is enough work. nbytes: of all items."""
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
