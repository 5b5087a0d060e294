"""Read files by offset, cache decoded chunks, and spread work over the cores."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.reading.opening import check_same, is_remote, most_open
from h5rows.reading.stored import Identity, identity as identity_of

CORES_LIMIT = "H5ROWS_CORES"  # environment variable: most threads that decode


def _removed(path: str) -> ConfigError:
    return ConfigError(f"{path} was removed during this run; restore it and start the run again")


class _Descriptor:
    """A file descriptor, closed with its last reference, so that no thread uses one that another thread closed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _MAP_FAILED = _libc.mmap, _libc.munmap, ctypes.c_void_p(-1).value
_mmap.restype, _munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)


class _Mapping:
    """A file's bytes in memory, as an array for NumPy, unmapped with their last view. `mmap.mmap` would keep a second
    descriptor open."""

    def __init__(self, fd: int, size: int) -> None:
        address = _mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
        self._place = address, size
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self, unmap: Callable[[int, int], int] = _munmap) -> None:
        if hasattr(self, "_place"):
            unmap(*self._place)


class Probes:
    """Find out from a sample of a request whether all of it is in memory; for one reader.

    A sample has 8 to 15 items. After `MANY` items in turn that were in memory it has one, at another place each time:
    each probe releases the GIL, and if another thread takes it, this one waits longer than a probe takes.
    """

    MANY = 64

    def __init__(self) -> None:
        self._in_turn = 0  # number of items in memory since the last one that was not

    def all_in_memory(self, count: int, in_memory: Callable[[int], bool]) -> bool:
        """Return True if a sample of the items 0 ... count - 1 is in memory. in_memory: returns it for one item."""
        before = self._in_turn
        sample = range(0, count, max(1, count // 8)) if before < self.MANY or not count else [before % count]
        found = all(map(in_memory, sample))
        self._in_turn = before + len(sample) if found else 0
        return found


class RawFile:
    """A file that is read by offset, and mapped; shared by all fields and data sets of this process.

    identity: the identity of the file whose offsets are known. Data are valid only if `check` passes after they were
    read. Reading a mapped file that was truncated kills the process with SIGBUS. If more than `most_open()` files are
    open, the descriptor that was opened first is closed. Its mapping stays valid, and the descriptor is opened again
    when it is used.
    """

    def __init__(self, path: str, identity: Identity) -> None:
        self.path, self.identity = path, identity
        self._mapped: np.ndarray | None = None
        self._held: _Descriptor | None = None
        self._open()

    def __reduce__(self) -> Any:
        return RawFile, (self.path, self.identity)

    def _open(self) -> _Descriptor:
        """Return the descriptor, opened now if it was closed. Use `fd` only while the result is referenced."""
        if (held := self._held) is not None:
            return held
        while len(_opened) >= most_open():
            with suppress(KeyError):  # another thread has removed the last one
                first = _opened.popitem(last=False)[1]()
                if first is not None:
                    first._held = None
        try:
            held = _Descriptor(os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        except FileNotFoundError:  # opened again, here or in a worker
            raise _removed(self.path) from None
        check_same(self.path, self.identity, identity_of(held.fd))
        self._has_holes = 512 * os.fstat(held.fd).st_blocks < self.identity[2]
        self._held, key = held, id(self)
        _opened[key] = weakref.ref(self, lambda _: _opened.pop(key, None))
        return held

    def check(self) -> None:
        """Raise ConfigError if the file has changed since its offsets were read."""
        held, (device, inode, size, mtime) = self._held, self.identity
        try:
            now = os.stat(self.path) if held is None else os.fstat(held.fd)
        except FileNotFoundError:
            raise _removed(self.path) from None
        if now.st_size != size or now.st_mtime_ns != mtime or now.st_ino != inode or now.st_dev != device:
            check_same(self.path, self.identity, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))

    def map(self) -> np.ndarray:
        """Return all bytes as a read-only array."""
        if self._mapped is None:
            held = self._open()
            self._mapped = np.asarray(_Mapping(held.fd, self.identity[2]))
        return self._mapped

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset. Raise ConfigError if the file ends before."""
        parts, left, held = [], size, self._open()
        while left:
            part = os.pread(held.fd, left, offset + size - left)
            if not part:
                raise ConfigError(f"{self.path} ends within a chunk at byte {offset}: it was truncated; write it again")
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def advise(self, offset: np.ndarray, size: np.ndarray, probes: Probes) -> None:
        """Ask the kernel to read these extents, unless a sample of them is in memory already. offset, size: (n,)
        int64. probes: of the reader that calls."""
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        if probes.all_in_memory(len(offset), lambda k: self.in_memory(int(offset[k] + size[k] // 2))):
            return
        held = self._open()
        order = np.argsort(offset)
        begin, end = offset[order], (offset + size)[order]
        gap = np.flatnonzero(begin[1:] > end[:-1] + 65536) + 1  # closer ones are cheaper in one call
        firsts, lasts = np.append(0, gap), np.append(gap, len(begin)) - 1
        for a, b in zip(begin[firsts].tolist(), np.maximum.accumulate(end)[lasts].tolist(), strict=True):
            os.posix_fadvise(held.fd, a, b - a, os.POSIX_FADV_WILLNEED)

    def in_memory(self, at: int) -> bool:
        """Return True if a byte is in memory; False if not, or if the system cannot tell."""
        held = self._open()
        try:
            if os.preadv(held.fd, [bytearray(1)], at, os.RWF_NOWAIT) != 1:
                return False
            # the system also returns a byte of a hole, which has no memory: using it from the mapping would load
            # megabytes of zeros around it, unless it is requested before
            return not self._has_holes or os.lseek(held.fd, at, os.SEEK_DATA) == at
        except (AttributeError, OSError):
            return False


# the RawFiles with a descriptor, the first opened first; not kept alive. Without a lock, which another thread could
# hold during a fork: each operation is atomic
_opened: OrderedDict[int, weakref.ref[RawFile]] = OrderedDict()
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
    """Call work(item) for each item, in several threads if there is enough work. nbytes: the bytes of all items."""
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
