"""Read remote files by blocks: needed blocks are downloaded into a folder of limited size. No torch.

    file      | segment 0            | segment 1            | ...        16 MiB each, a sparse file in the folder
    segment   | block 0 | 1 | 2 | 3 ... | flags | claims |              blocks of 256 KiB, up to 4 per request
    flags     1: the block is complete                                  written after it, so correct after any kill
    claims    until when a process downloads it, by the host's clock    10 seconds if that process is killed

    LAB_CACHE_DIR/ranges/<host>@<boot>/<host and path>-<url>/<version>/<segment>

All processes of a host share the folder, so each block is downloaded once as long as it is kept. Above the limit, the
least recently used segments are deleted; a process that has one mapped can still read it. Folders of earlier boots of
this host are deleted, because a crash of the machine may leave flags without their bytes.
"""

from __future__ import annotations

import fcntl
import gc
import heapq
import math
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

from h5rows.checks import fits
from h5rows.errors import ConfigError, argument, as_typed
from h5rows.reading.folders import CACHE_DIR, cache_dir, shown
from h5rows.reading.opening import named
from h5rows.reading.remote import copy_of
from h5rows.reading.sources import Source, read
from h5rows.reading.stored import File

BLOCK, RUN, SEGMENT = 256 << 10, 1 << 20, 16 << 20  # bytes
AHEAD = 512 << 20  # bytes of batches that are requested before they are gathered; at most a third of the limit
LEAST_GB, NO_LIMIT = 1, 1 << 62
_BLOCKS = SEGMENT // BLOCK
_CLAIMS = SEGMENT + _BLOCKS  # offset of the claims
_THREADS, _TRIES = 48, 8  # concurrently; the last try is a minute after the first
_CLAIM_S, _POLL_S, _TOUCH_S = 10.0, 0.02, 1.0
_MOST_OPEN = 200  # segments that a process keeps mapped


_thread = threading.local()


class Segment:
    """A part of a file, of which some blocks are present. It stays readable for this process even if it is deleted."""

    def __init__(self, path: Path) -> None:
        self.touched = 0.0
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self.fd = _made(path)
        finalize(self, os.close, self.fd).atexit = False  # threads may work until the process ends
        mapping = mmap.mmap(self.fd, _CLAIMS + 8 * _BLOCKS, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(mapping, np.uint8, SEGMENT)
        self.there = np.frombuffer(mapping, np.bool_, _BLOCKS, SEGMENT)
        self.claims = np.frombuffer(mapping, np.float64, _BLOCKS, _CLAIMS)

    def claimed(self, blocks: list[int]) -> list[int]:
        """Return the blocks that no other process downloads, and claim them: other processes wait until this one has
        downloaded them, or until its claims expire because it was killed. blocks: numbers in the file."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            now = time.monotonic()
            mine = [b for b in blocks if not self.there[b % _BLOCKS] and self.claims[b % _BLOCKS] < now]
            self.claim(mine, now + _CLAIM_S)
            return mine
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def claim(self, blocks: list[int], until: float) -> None:
        """Write the time until which blocks are claimed. blocks: numbers in the file."""
        for block in blocks:
            os.pwrite(self.fd, np.float64(until).tobytes(), _CLAIMS + 8 * (block % _BLOCKS))

    def fill(self, block: int, data: bytes) -> None:
        """Write blocks, then their flags. data: bytes of this block and the following ones."""
        view, at = memoryview(data), block * BLOCK
        while view:
            written = os.pwrite(self.fd, view, at)
            view, at = view[written:], at + written
        os.pwrite(self.fd, b"\1" * -(-len(data) // BLOCK), SEGMENT + block)

    def touch(self) -> bool:
        """Mark the segment as used now. Return False if it was deleted."""
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
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # another process has just created it
    finally:
        own.unlink()


class RangedFile:
    """A remote file, read by offset like a RawFile. limit: bytes that the shared folder may have."""

    stretch = SEGMENT  # bytes that an order may request together; independent of the limit, because orders depend on it

    def __init__(self, url: str, version: str, size: int, limit: int) -> None:
        self.url, self.version, self.size, self.limit = url, version, size, limit
        self.path = shown(url)
        self.compared = True  # one row of each field is compared with HDF5
        path, _ = copy_of(url)
        _allow_open_files()
        self._folder = cache_of_this_boot() / path.parent.parent.name / path.parent.name
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock, self._source = os.getpid(), threading.Condition(), cast("Source | None", None)
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._wanted: set[tuple[int, int]] = set()  # (block, urgent) in the queue
        self._failed: dict[int, Exception] = {}

    def __reduce__(self) -> Any:
        return ranged_file, (self.url, self.version, self.size, self.limit)

    @property
    def ahead_bytes(self) -> int:
        """Return how many bytes of batches to request before they are gathered."""
        return min(AHEAD, self.limit // 3)

    def check(self) -> None:
        """Do nothing, because each answer of the server is checked."""

    def described(self, size: int) -> str:
        """Return a line for the user. size: bytes of the whole set."""
        held = f"remote: blocks of {BLOCK >> 10} KiB are downloaded on demand"
        if size <= room(self.limit):
            return f"{held}, each once"
        sizes = f"{size / 1e9:,.1f} GB, of which {self.limit / 1e9:,.1f} GB are kept"
        return f"{held}: {sizes}; to download each once per epoch, use data/order=chunk_windows"

    def source(self) -> Source:
        """Return the connection to the server. Raise ConfigError if the file changed or cannot be reached."""
        if self._source is None:
            _, source = copy_of(self.url)
            if source is None or source.version != self.version:
                gone = "cannot be reached" if source is None else "was changed while this run had it open"
                raise ConfigError(f"{self.path}: {gone}; start the run again")
            self._source = source
        return self._source

    @contextmanager
    def in_haste(self) -> Iterator[None]:
        """Mark all `advise` calls of this thread in the block as urgent.

        So the blocks of several files are requested together before the thread waits for one of them.
        """
        _thread.in_haste = True
        try:
            yield
        finally:
            _thread.in_haste = False

    def advise(self, offset: np.ndarray, size: np.ndarray, probes: object = None) -> None:
        """Download these extents in the background. offset, size: (n,) int64. probes: not used."""
        self._after_a_fork()
        blocks = _blocks(offset, offset + size)
        segments = self._segments(blocks)
        self._ask(_lacking(blocks, segments), segments, urgent=getattr(_thread, "in_haste", False))

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset."""
        out = np.empty((1, size), np.uint8)
        self.rows_into(np.array([offset]), size, out, np.zeros(1, np.int64))
        return out.tobytes()

    def rows_into(self, offset: np.ndarray, size: int, out: np.ndarray, at: np.ndarray) -> None:
        """Copy `size` bytes from each offset (B,) to out[at[k]], (size,) uint8."""
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
        """Return the segments of these blocks by number, after the blocks were downloaded."""
        self._after_a_fork()
        segments = self._segments(blocks)
        with self._lock:
            for block in blocks.tolist():
                self._failed.pop(block, None)  # of an earlier request
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
        """Queue requests, each for blocks that are adjacent."""
        with self._lock:
            at_least = range(int(urgent), 2)  # a request that is not urgent is repeated as an urgent one
            asked = [block for block in lacking.tolist() if not any((block, how) in self._wanted for how in at_least)]
            for run in _runs(asked):
                self._wanted |= {(block, int(urgent)) for block in run}
                fetcher().put(self, segments[run[0] // _BLOCKS], run, urgent)

    def work(self, segment: Segment, run: list[int], urgent: bool) -> None:
        """Download the blocks `run`, in a thread of the fetcher."""
        try:
            with fetcher().claimed(segment, run) as mine:
                for part in _runs(mine):
                    self._fetch(segment, part)
        except Exception as error:  # raised by the thread that waits
            with self._lock:
                self._failed |= dict.fromkeys(run, error) if urgent else {}
        finally:
            with self._lock:
                self._wanted -= {(block, int(urgent)) for block in run}
                self._lock.notify_all()

    def _fetch(self, segment: Segment, run: list[int]) -> None:
        begin, end = run[0] * BLOCK, min((run[-1] + 1) * BLOCK, self.size)
        data = read(self.source(), begin, end, tries=_TRIES)
        with _one_line(self):
            try:
                segment.fill(run[0] % _BLOCKS, data)
            except OSError:  # the disk is full
                make_room(self.limit // 2)
                segment.fill(run[0] % _BLOCKS, data)
        fetcher().count(len(data), self.limit)


def _allow_open_files() -> None:
    """Raise the limit of open files to the maximum, because random rows of a large set need many segments, with two
    handles each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports unlimited, but allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _blocks(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the numbers (n,) int64 of the blocks of these extents, in the order of their first use."""
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
    """Yield lists of adjacent blocks within a segment, at most as many as a request takes, in the order of the
    first."""
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
    """Threads of this process that download blocks, urgent ones first; they end if the queue is empty."""

    def __init__(self) -> None:
        self._lock, self._numbers, self._threads = threading.Lock(), count(), 0
        self._queue: list[tuple[bool, int, RangedFile, Segment, list[int]]] = []  # urgent ones first
        self._claims: dict[int, tuple[Segment, list[int]]] = {}  # of each thread that downloads
        self._renews = False  # a thread extends the claims
        self._fetched: float = float("inf")  # bytes since the folder was last checked

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

    @contextmanager
    def claimed(self, segment: Segment, run: list[int]) -> Iterator[list[int]]:
        """Yield the blocks of `run` that no other process downloads, claimed until the block ends, however long the
        server takes."""
        mine, thread = segment.claimed(run), threading.get_ident()
        try:
            with self._lock:
                self._claims[thread] = segment, mine
                if not self._renews:
                    threading.Thread(target=self._renew, name="claims", daemon=True).start()
                    self._renews = True
            yield mine
        finally:
            with self._lock:
                del self._claims[thread]
                segment.claim([block for block in mine if not segment.there[block % _BLOCKS]], 0.0)

    def _renew(self) -> None:
        while True:
            time.sleep(_CLAIM_S / 10)
            with self._lock:  # a claim that has ended must not be extended
                self._renews = bool(self._claims)
                if not self._renews:
                    return
                for segment, blocks in self._claims.values():
                    with suppress(OSError):  # the disk is full; then others may download the blocks, too
                        segment.claim(blocks, time.monotonic() + _CLAIM_S)

    def count(self, size: int, limit: int) -> None:
        """Count downloaded bytes, and limit the folder's size from time to time, also before the first block."""
        with self._lock:
            self._fetched += size
            if self._fetched < limit / 64:
                return
            self._fetched = 0
        make_room(room(limit))


_fetchers: dict[int, _Fetcher] = {}


def fetcher() -> _Fetcher:
    """Return this process's fetcher."""
    return _fetchers.get(os.getpid()) or _fetchers.setdefault(os.getpid(), _Fetcher())


def cache_of_this_boot() -> Path:
    """Return the folder of blocks, and delete those of earlier boots of this host."""
    host, boot = socket.gethostname(), ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    folder = cache_dir() / "ranges" / f"{host}@{boot}"
    for old in folder.parent.glob(f"{host}@*"):
        if old != folder and boot:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def room(limit: int) -> int:
    """Return the size to which the folder is reduced; less than the limit, because processes continue to write."""
    return limit - limit // 8


def make_room(limit: int) -> None:
    """Delete the least recently used segments until the others have at most `limit` bytes."""
    held = []
    for path in cache_of_this_boot().glob("*/*/*"):
        with suppress(OSError):  # deleted by another process
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
        raise ConfigError(f"{what}; reduce {argument('cache_gb')}, or set {CACHE_DIR} to another folder") from error


# -- files that are open -----------------------------------------------------------------------------------------------

_files: WeakValueDictionary[tuple[int, str], RangedFile] = WeakValueDictionary()  # (process, path) -> file


def ranged_file(url: str, version: str, size: int, limit: int) -> RangedFile:
    """Return this process's RangedFile of a URL. Raise ConfigError if another query string is in use for it."""
    key = (os.getpid(), shown(url))
    file = _files.get(key)
    if file is None or (file.url, file.version) != (url, version):
        if file is not None and file.url != url:
            raise ConfigError(f"{file.path}: two URLs that differ only in their query string; use one of them")
        file = _files[key] = RangedFile(url, version, size, limit)
    file.limit = min(file.limit, limit)
    return file


def file_of(path: str) -> RangedFile:
    """Return the open RangedFile of this name."""
    return _files[os.getpid(), path]


def check_cache_size(cache_gb: Any) -> None:
    """Raise ConfigError if cache_gb is not a number >= LEAST_GB."""
    if not fits(cache_gb, float) or not LEAST_GB <= cache_gb < math.inf:
        raise ConfigError(
            f"{argument('cache_gb')}={cache_gb}: must be >= {LEAST_GB}; to download whole files, set {as_typed(None)}"
        )


def described(urls: Sequence[str], cache_gb: float) -> list[RangedFile]:
    """Return the RangedFiles of URLs, opened concurrently; their first and last blocks, which HDF5 reads first, are
    requested.

    cache_gb: size of the shared folder in 10**9 bytes. Raise ConfigError if a server cannot be reached or cannot send
    parts of files.
    """
    from concurrent.futures import ThreadPoolExecutor

    limit = int(cache_gb * 1e9)

    def asked(url: str) -> RangedFile:
        _, source = copy_of(url)
        if source is None:
            raise ConfigError(f"{shown(url)}: cannot be reached")
        if not source.ranged:
            why = "its server cannot send parts of files, or sends neither ETag nor date"
            raise ConfigError(f"{shown(url)}: {why}; set {argument('cache_gb', None)}")
        file = ranged_file(url, source.version, source.size, limit)
        file.advise(np.array([0, max(0, source.size - 1)]), np.array([1, 1]))
        return file

    with ThreadPoolExecutor(min(32, len(urls)), "ask") as pool:
        files = list(pool.map(asked, urls))
    for shard in files[1:]:
        shard.compared = False  # like the first one; each comparison would be a request
    return files


@contextmanager
def open_ranged(file: RangedFile) -> Iterator[h5py.File]:
    """Open a remote file with h5py. Do not follow links to other files in it: HDF5 would open this file in their
    place."""
    access, read = h5py.h5p.create(h5py.h5p.FILE_ACCESS), _Read(file)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, read)
    # HDF5 crashes if these are still open when Python ends, for example because a traceback refers to them
    close_at_exit = [finalize(read, access.close)]
    try:
        with named(file.path):
            opened = File(h5py.h5f.open(os.fsencode(file.path), h5py.h5f.ACC_RDONLY, access))
            close_at_exit.append(finalize(read, opened.close))
            yield opened
    finally:
        for close in reversed(close_at_exit):
            close()


class _Read:
    """The file object that HDF5 reads."""

    def __init__(self, file: RangedFile) -> None:
        self._file, self._at = file, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._file.size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read in the thread that called h5py and has its lock.

        Garbage collection is disabled meanwhile, because a collection in another thread might wait for that lock.
        """
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
