"""Remote files of which the blocks that are needed are fetched, into a folder with a limit. No torch.

    file      | segment 0            | segment 1            | ...        16 MiB each, a sparse file in the folder
    segment   | block 0 | 1 | 2 | 3 ... | flags | claims |              256 KiB, a request takes up to 4 of them
    flags     1: the block is whole                                     set after its bytes, so true after any kill
    claims    until when somebody fetches it, by the host's clock       of a process that was killed: 10 seconds

    LAB_CACHE_DIR/ranges/<host>@<boot>/<host and path>-<url>/<version>/<segment>

All processes of a host share the folder: each block crosses the network once, while it is held. Above the limit the
segments that were used least recently are deleted; who reads one still has it mapped, and reads on. What another boot
of this host has left is deleted: a crash of the machine may leave flags without their bytes.
"""

from __future__ import annotations

import fcntl
import gc
import heapq
import mmap
import os
import resource
import shutil
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary, finalize

import h5py
import numpy as np

from h5rows.errors import ConfigError, as_typed
from h5rows.reading.folders import CACHE_DIR, cache_dir, shown
from h5rows.reading.opening import named
from h5rows.reading.remote import copy_of
from h5rows.reading.sources import Source, read

BLOCK, RUN, SEGMENT = 256 << 10, 1 << 20, 16 << 20  # bytes
AHEAD = 512 << 20  # bytes of batches that are asked for before they are gathered; a third of the limit at most
LEAST_GB, NO_LIMIT = 1, 1 << 62
_BLOCKS = SEGMENT // BLOCK
_CLAIMS = SEGMENT + _BLOCKS  # where they begin
_THREADS, _TRIES = 48, 8  # at a time; the last try a minute after the first
_CLAIM_S, _POLL_S, _TOUCH_S = 10.0, 0.02, 1.0
_MOST_OPEN = 200  # segments that a process holds mapped


_thread = threading.local()


class Segment:
    """Bytes of a file, some of which are there. It stays whole for who holds it, deleted or not."""

    def __init__(self, path: Path) -> None:
        self.touched = 0.0
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self.fd = _made(path)
        finalize(self, os.close, self.fd).atexit = False  # threads may be at work until the very end
        mapping = mmap.mmap(self.fd, _CLAIMS + 8 * _BLOCKS, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(mapping, np.uint8, SEGMENT)
        self.there = np.frombuffer(mapping, np.bool_, _BLOCKS, SEGMENT)
        self.claims = np.frombuffer(mapping, np.float64, _BLOCKS, _CLAIMS)

    def claimed(self, blocks: list[int]) -> list[int]:
        """Those that nobody else fetches now, and are this process's from now on. blocks: numbers in the file."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            now = time.monotonic()
            mine = [b for b in blocks if not self.there[b % _BLOCKS] and self.claims[b % _BLOCKS] < now]
            for block in mine:
                self.claim(block % _BLOCKS, now + _CLAIM_S)
            return mine
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def claim(self, block: int, until: float) -> None:
        os.pwrite(self.fd, np.float64(until).tobytes(), _CLAIMS + 8 * block)

    def fill(self, block: int, data: bytes) -> None:
        """data: of this block and those behind it."""
        view, at = memoryview(data), block * BLOCK
        while view:
            written = os.pwrite(self.fd, view, at)
            view, at = view[written:], at + written
        os.pwrite(self.fd, b"\1" * -(-len(data) // BLOCK), SEGMENT + block)

    def touch(self) -> bool:
        """Say that it is in use. False: it was deleted."""
        if (now := time.monotonic()) - self.touched > _TOUCH_S:
            self.touched = now
            if not os.fstat(self.fd).st_nlink:
                return False
            os.utime(self.fd)
        return True


def _made(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    fd = os.open(own, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.pwrite(fd, bytes(9 * _BLOCKS), SEGMENT)
        with suppress(FileExistsError):
            os.link(own, path)
            return fd
        os.close(fd)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # of another process, just now
    finally:
        own.unlink()


class RangedFile:
    """A remote file, read by offset as RawFile is. limit: bytes that the folder, which all share, may have."""

    stretch = SEGMENT  # bytes that an order may ask for together; orders depend on it, so it does not on the limit

    def __init__(self, url: str, version: str, size: int, limit: int) -> None:
        self.url, self.version, self.size, self.limit = url, version, size, limit
        self.path = shown(url)
        self.compared = True  # a row of each field with what HDF5 reads
        path, _ = copy_of(url)
        _allow_open_files()
        self._folder = cache_of_this_boot() / path.parent.parent.name / path.parent.name
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock, self._source = os.getpid(), threading.Condition(), cast("Source | None", None)
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._wanted: set[tuple[int, int]] = set()  # first block, urgent: in the queue
        self._failed: dict[int, Exception] = {}

    def __reduce__(self) -> Any:
        return ranged_file, (self.url, self.version, self.size, self.limit)

    @property
    def ahead_bytes(self) -> int:
        return min(AHEAD, self.limit // 3)

    def check(self) -> None:
        """Each answer of the server is."""

    def described(self, size: int) -> str:
        """size: bytes of the whole set."""
        held = f"remote: blocks of {BLOCK >> 10} KiB are fetched as they are needed"
        if size <= room(self.limit):
            return f"{held}, each once"
        sizes = f"{size / 1e9:,.1f} GB, of which {self.limit / 1e9:,.1f} are kept"
        return f"{held}: {sizes}; data/order=chunk_windows fetches each once an epoch"

    def source(self) -> Source:
        if self._source is None:
            _, source = copy_of(self.url)
            if source is None or source.version != self.version:
                gone = "cannot be reached" if source is None else "was changed while this run had it open"
                raise ConfigError(f"{self.path}: {gone}; start the run again")
            self._source = source
        return self._source

    @contextmanager
    def in_haste(self) -> Iterator[None]:
        """What this thread advises in this block is needed at once: of several files, so it is asked for together."""
        _thread.in_haste = True
        try:
            yield
        finally:
            _thread.in_haste = False

    def advise(self, offset: np.ndarray, size: np.ndarray) -> None:
        """Fetch them meanwhile."""
        self._after_a_fork()
        blocks = _blocks(offset, offset + size)
        segments = self._segments(blocks)
        self._ask(_lacking(blocks, segments), segments, urgent=getattr(_thread, "in_haste", False))

    def read(self, size: int, offset: int) -> bytes:
        out = np.empty((1, size), np.uint8)
        self.rows_into(np.array([offset]), size, out, np.zeros(1, np.int64))
        return out.tobytes()

    def rows_into(self, offset: np.ndarray, size: int, out: np.ndarray, at: np.ndarray) -> None:
        """`size` bytes from each offset, (B,), to out[at[k]], (size,) uint8."""
        if size == 0 or len(offset) == 0:
            return
        segments = self._held(_blocks(offset, offset + size))
        first, last = offset // SEGMENT, (offset + size - 1) // SEGMENT
        for number in np.unique(first).tolist():
            inside = np.flatnonzero((first == number) & (last == number))
            if len(inside):
                data = segments[number].bytes
                runs = np.lib.stride_tricks.as_strided(data, (SEGMENT - size + 1, size), (1, 1))
                out[at[inside]] = runs[offset[inside] - number * SEGMENT]
        for k in np.flatnonzero(first != last).tolist():
            begin, end = int(offset[k]), int(offset[k]) + size
            for number in range(int(first[k]), int(last[k]) + 1):
                low, high = max(begin, number * SEGMENT), min(end, (number + 1) * SEGMENT)
                part = segments[number].bytes[low - number * SEGMENT : high - number * SEGMENT]
                out[at[k], low - begin : high - begin] = part

    def _held(self, blocks: np.ndarray) -> dict[int, Segment]:
        """Their segments, with these blocks there."""
        self._after_a_fork()
        segments = self._segments(blocks)
        with self._lock:
            for block in blocks.tolist():
                self._failed.pop(block, None)  # for somebody before
        while (lacking := _lacking(blocks, segments)).size:
            self._ask(lacking, segments, urgent=True)
            with self._lock:
                for block in lacking.tolist():
                    if error := self._failed.get(block):
                        raise error
                self._lock.wait(_POLL_S)
        return segments

    def _after_a_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _segments(self, blocks: np.ndarray) -> dict[int, Segment]:
        found = {}
        with self._lock, _one_line(self):
            for number in np.unique(blocks // _BLOCKS).tolist():
                segment = self._open.get(number)
                if segment is None or not segment.touch():
                    segment = self._open[number] = Segment(self._folder / str(number))
                    segment.touch()
                self._open.move_to_end(number)
                found[number] = segment
            while len(self._open) > max(_MOST_OPEN, len(found)):
                self._open.popitem(last=False)
        return found

    def _ask(self, lacking: np.ndarray, segments: dict[int, Segment], urgent: bool) -> None:
        """Queue requests of blocks that lie together."""
        with self._lock:
            at_least = range(int(urgent), 2)  # what is asked for in no haste is asked for again in haste
            asked = [block for block in lacking.tolist() if not any((block, how) in self._wanted for how in at_least)]
            for run in _runs(asked):
                self._wanted |= {(block, int(urgent)) for block in run}
                fetcher().put(self, segments[run[0] // _BLOCKS], run, urgent)

    def work(self, segment: Segment, run: list[int], urgent: bool) -> None:
        """In a thread of the fetcher's."""
        mine: list[int] = []
        try:
            mine = segment.claimed(run)
            for part in _runs(mine):
                self._fetch(segment, part)
        except Exception as error:  # for who waits
            with self._lock:
                self._failed |= dict.fromkeys(run, error) if urgent else {}
        finally:
            for block in mine:
                if not segment.there[block % _BLOCKS]:
                    segment.claim(block % _BLOCKS, 0.0)
            with self._lock:
                self._wanted -= {(block, int(urgent)) for block in run}
                self._lock.notify_all()

    def _fetch(self, segment: Segment, run: list[int]) -> None:
        claimed = time.monotonic()

        def go_on() -> bool:  # called after each piece that has come
            nonlocal claimed
            if (now := time.monotonic()) - claimed > _CLAIM_S / 10:
                claimed = now
                for block in run:
                    segment.claim(block % _BLOCKS, now + _CLAIM_S)
            return True

        begin, end = run[0] * BLOCK, min((run[-1] + 1) * BLOCK, self.size)
        data = read(self.source(), begin, end, go_on, _TRIES)
        with _one_line(self):
            try:
                segment.fill(run[0] % _BLOCKS, data)
            except OSError:  # of a full disk
                make_room(self.limit // 2)
                segment.fill(run[0] % _BLOCKS, data)
        fetcher().count(len(data), self.limit)


def _allow_open_files() -> None:
    """As many as the system allows: rows from all over a large set are in many segments, with two handles each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says unlimited, and allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _blocks(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(n,) int64: the blocks of these extents, in the order of their first use."""
    first = begin // BLOCK
    counts = np.maximum(end - 1, begin) // BLOCK + 1 - first
    firsts = np.repeat(first, counts)
    every = firsts + np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
    _, at = np.unique(every, return_index=True)
    return every[np.sort(at)]


def _lacking(blocks: np.ndarray, segments: dict[int, Segment]) -> np.ndarray:
    number, within = np.divmod(blocks, _BLOCKS)
    lacks = np.zeros(len(blocks), bool)
    for each, segment in segments.items():
        of = number == each
        lacks[of] = ~segment.there[within[of]]
    return blocks[lacks]


def _runs(blocks: list[int]) -> Iterator[list[int]]:
    """Blocks that follow each other, within a segment, as many as a request takes; in the order of the first."""
    left = set(blocks)
    for block in blocks:
        if block in left:
            begin = end = block
            while begin - 1 in left and begin % _BLOCKS and end - begin < RUN // BLOCK - 1:
                begin -= 1
            while end + 1 in left and (end + 1) % _BLOCKS and end - begin < RUN // BLOCK - 1:
                end += 1
            left -= (run := set(range(begin, end + 1)))
            yield sorted(run)


class _Fetcher:
    """Threads of this process that fetch, what is waited for first; they end when there is nothing to do."""

    def __init__(self) -> None:
        self._lock, self._numbers, self._threads = threading.Lock(), count(), 0
        self._queue: list[tuple[bool, int, RangedFile, Segment, list[int]]] = []  # the urgent first
        self._fetched: float = float("inf")  # bytes since the last look at the folder

    def put(self, file: RangedFile, segment: Segment, run: list[int], urgent: bool) -> None:
        with self._lock:
            heapq.heappush(self._queue, (not urgent, next(self._numbers), file, segment, run))
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="ranges", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads -= 1
                    return
                later, _, file, segment, run = heapq.heappop(self._queue)
            file.work(segment, run, not later)
            del file, segment

    def count(self, size: int, limit: int) -> None:
        """Look at the folder now and then; before the first block too."""
        with self._lock:
            self._fetched += size
            if self._fetched < limit / 64:
                return
            self._fetched = 0
        make_room(room(limit))


_fetchers: dict[int, _Fetcher] = {}


def fetcher() -> _Fetcher:
    return _fetchers.get(os.getpid()) or _fetchers.setdefault(os.getpid(), _Fetcher())


def cache_of_this_boot() -> Path:
    """The folder; those of earlier boots of this host are deleted."""
    host, boot = socket.gethostname(), ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    folder = cache_dir() / "ranges" / f"{host}@{boot}"
    for old in folder.parent.glob(f"{host}@*"):
        if old != folder and boot:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def room(limit: int) -> int:
    """Down to which a look at the folder deletes: processes write between their looks."""
    return limit - limit // 8


def make_room(limit: int) -> None:
    """Delete the segments that were used least recently, until the others have at most `limit` bytes."""
    held = []
    for path in cache_of_this_boot().glob("*/*/*"):
        with suppress(OSError):  # deleted meanwhile
            found = path.stat()
            held.append((found.st_mtime, found.st_blocks * 512, path))
    held.sort()
    total = sum(size for _, size, _ in held)
    for _, size, path in held:
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


@contextmanager
def _one_line(file: RangedFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"blocks of {file.path} cannot be written to {cache_dir() / 'ranges'}: {error.strerror}"
        raise ConfigError(f"{what}; a smaller data.cache_gb, or {CACHE_DIR}=... chooses another folder") from error


# -- files that are open -----------------------------------------------------------------------------------------------

_files: WeakValueDictionary[tuple[int, str], RangedFile] = WeakValueDictionary()  # by process and path


def ranged_file(url: str, version: str, size: int, limit: int) -> RangedFile:
    key = (os.getpid(), shown(url))
    file = _files.get(key)
    if file is None or (file.url, file.version) != (url, version):
        if file is not None and file.url != url:
            raise ConfigError(f"{file.path}: two addresses that differ in what follows their question mark")
        file = _files[key] = RangedFile(url, version, size, limit)
    file.limit = min(file.limit, limit)
    return file


def file_of(path: str) -> RangedFile:
    """The one that is open by this name."""
    return _files[os.getpid(), path]


def described(urls: Sequence[str], cache_gb: float) -> list[RangedFile]:
    """Their files, all asked for at once; the beginnings and ends, where HDF5 looks first, are on the way."""
    from concurrent.futures import ThreadPoolExecutor

    if not isinstance(cache_gb, (int, float)) or not cache_gb >= LEAST_GB:
        raise ConfigError(
            f"data.cache_gb={cache_gb}: must be a number from {LEAST_GB} on; {as_typed(None)} fetches whole files"
        )
    limit = int(cache_gb * 1e9)

    def asked(url: str) -> RangedFile:
        _, source = copy_of(url)
        if source is None:
            raise ConfigError(f"{shown(url)}: cannot be reached")
        if not source.ranged:
            raise ConfigError(f"{shown(url)}: its server sends no parts of files; data.cache_gb=null fetches it whole")
        file = ranged_file(url, source.version, source.size, limit)
        file.advise(np.array([0, max(0, source.size - 1)]), np.array([1, 1]))
        return file

    with ThreadPoolExecutor(min(32, len(urls)), "ask") as pool:
        files = list(pool.map(asked, urls))
    for shard in files[1:]:
        shard.compared = False  # written as the first: each comparison would be a request
    return files


@contextmanager
def open_ranged(file: RangedFile) -> Iterator[h5py.File]:
    """Links that lead out of it must not be followed: HDF5 would take it for the other."""
    access, read = h5py.h5p.create(h5py.h5p.FILE_ACCESS), _Read(file)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, read)
    # what is open when Python has ended lets HDF5 crash then: a traceback that somebody keeps may hold either
    close_at_exit = [finalize(read, access.close)]
    try:
        with named(file.path):
            opened = h5py.File(h5py.h5f.open(os.fsencode(file.path), h5py.h5f.ACC_RDONLY, access))
            close_at_exit.append(finalize(read, opened.close))
            yield opened
    finally:
        for close in reversed(close_at_exit):
            close()


class _Read:
    """What HDF5 reads in place of a file."""

    def __init__(self, file: RangedFile) -> None:
        self._file, self._at = file, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._file.size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """In the thread that called h5py and holds its lock: a collection in another thread might wait for that."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            size = max(0, min(len(buffer), self._file.size - self._at))
            buffer[:size] = self._file.read(size, self._at)
            return size
        finally:
            if collecting:
                gc.enable()

    def flush(self) -> None: ...
