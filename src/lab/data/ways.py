"""The three ways to read rows of one HDF5 dataset (layout.py says which). All give the same bytes.

Each has `gather_into(rows, out, at=None)`: write row rows[k] to out[k], or to out[at[k]]. rows: (B,) int64, all within
the dataset (the caller checks); out: C-contiguous, of the dataset's shape and type. Safe from several threads.
`advise(rows)` asks the kernel to fetch what is not in memory yet. Handles are this process's own: they are left out of
a pickle, and a forked child opens what must not be shared.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import h5py
import numpy as np

from lab.data import filters
from lab.data.layout import Layout, open_file
from lab.errors import ConfigError


class Way(Protocol):
    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None: ...

    def advise(self, rows: np.ndarray) -> None: ...


class RawFile:
    """A file read by offset, and mapped. `end`: bytes it must have; checked before each use, since reading a mapping
    past the end of a file kills the process."""

    def __init__(self, path: str, end: int) -> None:
        self.path, self.end = path, end
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self.fd)
        stat = os.fstat(self.fd)
        self.identity = (stat.st_dev, stat.st_ino)
        self.check()

    def __getstate__(self) -> Any:
        return self.path, self.end, self.identity

    def __setstate__(self, state: Any) -> None:
        path, end, identity = state
        self.__init__(path, end)  # type: ignore[misc]
        if self.identity != identity:
            raise ConfigError(f"{path} was replaced by another file while this run had it open; start the run again")

    def check(self) -> None:
        size = os.fstat(self.fd).st_size
        if size < self.end:
            raise ConfigError(
                f"{self.path} has {size} bytes, its datasets need {self.end}: it was cut short; write it again"
            )

    def map(self) -> np.ndarray:
        """All bytes, read-only."""
        return np.frombuffer(mmap.mmap(self.fd, self.end, access=mmap.ACCESS_READ), dtype=np.uint8)

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
        if not hasattr(os, "posix_fadvise") or len(offset) == 0:
            return
        probe = slice(None, None, max(1, len(offset) // 8))
        if all(map(self._resident, offset[probe].tolist(), size[probe].tolist())):
            return
        order = np.argsort(offset)
        begin, end = offset[order], (offset + size)[order]
        gap = np.flatnonzero(begin[1:] > end[:-1] + 65536) + 1  # nearer ones are cheaper together
        firsts, lasts = np.append(0, gap), np.append(gap, len(begin)) - 1
        for a, b in zip(begin[firsts].tolist(), np.maximum.accumulate(end)[lasts].tolist(), strict=True):
            os.posix_fadvise(self.fd, a, b - a, os.POSIX_FADV_WILLNEED)

    def _resident(self, offset: int, size: int) -> bool:
        try:
            return os.preadv(self.fd, [bytearray(1)], offset + size // 2, os.RWF_NOWAIT) == 1
        except (AttributeError, BlockingIOError):
            return False
        except OSError:  # the file system cannot tell
            return False


class Mapped:
    """Rows lie in the file as they are: copy them from its mapping."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._file = RawFile(layout.path, layout.end)
        self._open()

    def __getstate__(self) -> Any:
        return self.layout, self._file

    def __setstate__(self, state: Any) -> None:
        self.layout, self._file = state
        self._open()

    def _open(self) -> None:
        self._bytes, size = self._file.map(), self.layout.row_bytes
        self._rows: np.ndarray | None = None
        if len(self.layout.offset) == 1:
            first = int(self.layout.offset[0, 0])
            self._rows = self._bytes[first : first + self.layout.shape[0] * size].reshape(-1, size)
        # every run of `size` bytes, at any offset: picking from it gathers rows that lie anywhere
        self._runs = np.lib.stride_tricks.as_strided(
            self._bytes, (len(self._bytes) - size + 1, size), (1, 1), writeable=False
        )

    def _addresses(self, rows: np.ndarray) -> np.ndarray:
        chunk, inner = np.divmod(rows, self.layout.chunk[0])
        return self.layout.offset[chunk, 0] + inner * self.layout.row_bytes

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        if len(rows) == 0:
            return
        self._file.check()
        flat = out.reshape(len(out), -1).view(np.uint8)
        if self._rows is not None and at is None:
            # "clip" because "raise" would go through a buffer; one thread, since the loader has several of its own
            np.take(self._rows, rows, axis=0, out=flat[: len(rows)], mode="clip")
            return
        addresses, size = self._addresses(rows), self.layout.row_bytes
        at = np.arange(len(rows)) if at is None else at
        if size >= 16384:
            for k, address in zip(at.tolist(), addresses.tolist(), strict=True):
                flat[k] = self._bytes[address : address + size]
        else:
            step = max(1, (128 << 10) // size)  # rows whose copies stay in the cache
            for k in range(0, len(rows), step):
                flat[at[k : k + step]] = self._runs[addresses[k : k + step]]

    @property
    def contiguous(self) -> bool:
        return self._rows is not None

    def view(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of a contiguous dataset, not copied; read-only."""
        self._file.check()
        assert self._rows is not None
        return self._rows[start:stop].reshape(-1).view(self.layout.dtype).reshape(-1, *self.layout.shape[1:])

    def advise(self, rows: np.ndarray, count: np.ndarray | int = 1) -> None:
        """count: rows that follow each, itself included, where they lie together."""
        self._file.advise(self._addresses(rows), np.broadcast_to(count * self.layout.row_bytes, rows.shape))


class ChunkCache:
    """Decoded chunks, the least recently used dropped first; each is decoded once even if several threads want it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reset()

    def __getstate__(self) -> Any:
        return self.max_bytes

    def __setstate__(self, state: Any) -> None:
        self.max_bytes = state
        self._reset()

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


class Chunks:
    """Chunks with filters: read by offset, decoded in threads, cropped."""

    def __init__(self, layout: Layout, cache: ChunkCache) -> None:
        self.layout, self._cache = layout, cache
        self._file = RawFile(layout.path, layout.end)
        grid = [-(-n // c) for n, c in zip(layout.shape[1:], layout.chunk[1:], strict=True)]
        # for each tile of a row: where it goes in the sample, and how much of it is inside
        self._tiles = []
        for corner in np.ndindex(*grid):
            begin = [i * c for i, c in zip(corner, layout.chunk[1:], strict=True)]
            end = [min(b + c, n) for b, c, n in zip(begin, layout.chunk[1:], layout.shape[1:], strict=True)]
            target = tuple(map(slice, begin, end))
            self._tiles.append((target, tuple(slice(0, e - b) for b, e in zip(begin, end, strict=True))))

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        chunk, inner = np.divmod(rows, self.layout.chunk[0])
        order = np.argsort(chunk, kind="stable")
        cuts = np.flatnonzero(np.diff(chunk[order])) + 1
        groups = np.split(order, cuts) if len(rows) else []

        def copy(group: np.ndarray) -> None:
            number = int(chunk[group[0]])
            to, of = (group if at is None else at[group]), inner[group]
            for tile, (target, inside) in enumerate(self._tiles):
                values = self._chunk(number, tile)
                here, there = (to, *target), (of, *inside)
                if len(group) == 1:  # plain slices, several times faster
                    here, there = (to[0], *target), (of[0], *inside)
                out[here] = values[there]

        spread(copy, groups, self.layout.chunk_bytes * len(self._tiles) * len(groups))

    def _chunk(self, number: int, tile: int) -> np.ndarray:
        """Tile `tile` of row chunk `number`, decoded."""
        if self.layout.chunk[0] == 1:
            return self._decode(number, tile)
        key = (self.layout.path, self.layout.name, number, tile)
        return self._cache.get(key, self.layout.chunk_bytes, lambda: self._decode(number, tile))

    def _decode(self, number: int, tile: int) -> np.ndarray:
        layout = self.layout
        size, offset = int(layout.size[number, tile]), int(layout.offset[number, tile])
        if size == 0:
            return np.broadcast_to(np.asarray(layout.fill, dtype=layout.dtype), layout.chunk)
        raw = self._file.read(size, offset)
        try:
            data = filters.decode(raw, layout.pipeline, int(layout.mask[number, tile]), layout.chunk_bytes)
        except ValueError as error:
            first = number * layout.chunk[0]
            raise ConfigError(
                f"{layout.path}: {layout.name} is damaged in the chunk of row {first} (byte {offset}; {error}); "
                "copy or write the file again"
            ) from error
        return np.frombuffer(data, dtype=layout.dtype).reshape(layout.chunk)

    def advise(self, rows: np.ndarray) -> None:
        chunk = np.unique(rows // self.layout.chunk[0])
        offset, size = self.layout.offset[chunk].reshape(-1), self.layout.size[chunk].reshape(-1)
        self._file.advise(offset[size > 0], size[size > 0])


_pool: tuple[int, ThreadPoolExecutor] | None = None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


class ThroughH5py:
    """Whatever HDF5 can read, by h5py, tuned: held handles, no sieve, consecutive rows together."""

    def __init__(self, path: str, name: str, member: str | None = None, swmr: bool = False) -> None:
        self.path, self.name, self.member, self.swmr = path, name, member, swmr
        self._handles: dict[int, tuple[Any, Any]] = {}  # process -> file, dataset

    def __getstate__(self) -> Any:
        return self.path, self.name, self.member, self.swmr

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _dataset(self) -> Any:
        if os.getpid() not in self._handles:
            file = open_file(self.path, self.swmr)
            access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
            dset = file[self.name]
            if dset.chunks and (dset.chunks[0] == 1 or not dset.id.get_create_plist().get_nfilters()):
                access.set_chunk_cache(521, 0, 0.75)  # doubles random reads where no chunk is worth keeping
                dset = h5py.Dataset(h5py.h5d.open(file.id, self.name.encode(), access))
            self._handles.setdefault(os.getpid(), (file, dset))  # atomic: of two threads here, one's stays
        dset = self._handles[os.getpid()][1]
        if self.swmr:
            dset.refresh()
        return dset

    def _values(self) -> Any:
        dset = self._dataset()
        if self.member is not None:
            return dset.fields(self.member)
        return dset.asstr() if h5py.check_string_dtype(dset.dtype) else dset

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        order = np.argsort(rows, kind="stable")
        cuts = np.flatnonzero(np.diff(rows[order]) != 1) + 1
        try:
            values = self._values()
            for run in np.split(order, cuts) if len(rows) else []:
                begin, to = int(rows[run[0]]), (run if at is None else at[run])
                if len(run) == 1:
                    out[to[0]] = values[begin]
                else:
                    out[to] = values[begin : begin + len(run)]
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{self.path}: {self.name} cannot be read ({str(error).splitlines()[0]}); "
                "it is damaged, or needs a filter that is not installed (pip install hdf5plugin)"
            ) from error

    def advise(self, rows: np.ndarray) -> None:
        """HDF5 reads when it is asked to."""
