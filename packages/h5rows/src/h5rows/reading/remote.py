"""Download remote files to local copies, which are then read like any file. No torch.

    while composing       HDF5 reads the blocks that it needs on demand (ranges.py)
    before training       LAB_CACHE_DIR/<host and path>-<url>/<version>/name.h5.part grows, and is renamed to name.h5

One of the processes that share the folder downloads, the others wait. A download that was killed is resumed. Threads
that wait for the network refer to no object of h5py.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import h5py

from h5rows.errors import ConfigError
from h5rows.locks import Busy, Lock
from h5rows.reading.folders import CACHE_DIR, digest, folder_of, is_remote, once, plain, say, shown
from h5rows.reading.listed import EXPECTED, digest_of
from h5rows.reading.opening import names_of
from h5rows.reading.sources import TRIES, Failed, Source, pause, read, source_of

SPAN, AHEAD = 8 << 20, 4  # bytes per request, concurrent requests
POLL_S, SAY_S = 0.2, 30.0
ASKED_S = 60.0  # time before a process checks again if the file has changed

Between = Callable[[], object]  # called from time to time during a download; may raise to stop it


def fetch(path: str | Sequence[str], between: Between, cache_gb: float | None = None) -> dict[str, str]:
    """Download the remote files of `path`. Return {file: version of its local copy}.

    path: as in Dataset. between: called from time to time; may raise to stop. cache_gb: not None: download nothing, and
    return the versions that will be read.
    """
    names = [name for name in names_of(path) if is_remote(name)]
    copies = {shown(name): fetched(name, between) if cache_gb is None else copy_of(name)[0] for name in names}
    return {name: Path(copy).parent.name for name, copy in copies.items()}


def fetched(url: str, between: Between = lambda: None) -> str:
    """Return the path of the complete local copy; download it first if needed."""
    path, source = copy_of(url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not path.exists():
            try:
                lock = Lock(path.with_name(".lock"))
            except Busy:
                once(f"waiting for the process that downloads {shown(url)}")
                between()
                time.sleep(POLL_S)
                continue
            with lock:
                if not path.exists():
                    if source is None:
                        raise ConfigError(f"{path} was removed, and {shown(url)} cannot be reached")
                    _fetch(source, path, between)
    except OSError as error:  # an error of the disk; those of the network are Failed
        what = f"the copy of {shown(url)} cannot be written here: {error.strerror}"
        raise ConfigError(f"{path.parent}: {what}; set {CACHE_DIR} to another folder") from error
    return str(path)


# (process, a file's folder) -> time of the last check, path, source. By process: a source is not used after a fork
_known: dict[tuple[int, Path], tuple[float, Path, Source | None]] = {}


def copy_of(url: str) -> tuple[Path, Source | None]:
    """Return the path of the copy of the server's current version, which may not exist yet, and its source.

    If the server cannot be reached, return the newest complete copy and None.
    """
    folder, name = folder_of(url), plain(shown(url).rpartition("/")[2]) or "file"
    asked_at, path, source = _known.get((os.getpid(), folder), (-ASKED_S, folder, None))
    if time.monotonic() - asked_at >= ASKED_S:
        old = max(folder.glob(f"*/{name}"), key=lambda copy: copy.stat().st_mtime, default=None)
        then = time.strftime("%Y-%m-%d %H:%M", time.localtime(old.stat().st_mtime)) if old else ""
        try:
            source = source_of(url, 1 if old else TRIES)
            check_size(source)
            path = folder / digest(source.version) / name
            if old and not path.exists():
                once(f"{shown(url)} has changed since {then}; the old copy stays in {old.parent}")
        except ConfigError as error:
            if not isinstance(error.__cause__, Failed) and url in EXPECTED:  # the server has answered
                raise ConfigError(f"{error}; the set's index lists it: restore it, or pack the set again") from None
            if old is None or not isinstance(error.__cause__, Failed):
                raise
            path, source = old, None
            once(f"{error}; using the copy of {then}, {old}")
        _known[os.getpid(), folder] = time.monotonic(), path, source
    return path, source


def check_size(source: Source) -> None:
    """Raise ConfigError if a shard does not have the size in its index."""
    size = EXPECTED.get(source.url, (source.size, ""))[0]
    if source.size != size:
        what = f"has {source.size:,} bytes, expected {size:,} by the set's index"
        raise ConfigError(
            f"{shown(source.url)}: {what}: it has changed after packing; restore it, or pack the set again"
        )


def _fetch(source: Source, path: Path, between: Between) -> None:
    part, name = path.with_name(f"{path.name}.part"), shown(source.url)
    # a download is continued only if the version is known: another file may have the same size
    with open(part, "wb" if source.version == f"{source.size} None" else "ab") as file:
        first = here = os.fstat(file.fileno()).st_size  # of an interrupted download
        missing, free = source.size - here, shutil.disk_usage(path.parent).free
        if free < missing:
            need = f"{missing / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free"
            raise ConfigError(f"{name}: no space for its copy in {path.parent}: {need}; set {CACHE_DIR} to another one")
        say(f"downloading {name}, {missing / 1e6:,.1f} of {source.size / 1e6:,.1f} MB, into {path.parent}")
        began = said = time.monotonic()
        every_s, end = (POLL_S, "\r") if sys.stderr.isatty() else (SAY_S, "\n")
        for data in _pieces(source, here, between):
            file.write(data)
            file.flush()  # so that the part is always a prefix of the file
            here += len(data)
            if (now := time.monotonic()) - said > every_s:
                said = now
                say(f"  {here / source.size:.0%}, {(here - first) / (now - began) / 1e6:,.0f} MB/s", end)
        os.fsync(file.fileno())
    if (known := EXPECTED.get(source.url)) and digest_of(part) != known[1]:
        part.unlink()
        what = "the download differs from the packed file (SHA-256 in the set's index)"
        raise ConfigError(f"{name}: {what}; start the run again; if this repeats, pack the set again")
    if not h5py.is_hdf5(os.fsencode(part)):
        with open(part, "rb") as file:
            begin = file.read(16)
        part.unlink()
        raise ConfigError(f"{name}: is not an HDF5 file; it begins with {begin!r}")
    part.replace(path)


def _pieces(source: Source, at: int, between: Between) -> Iterator[bytes]:
    """Yield all bytes from `at` on, in order, downloaded by a few threads."""
    failures = 0
    while not source.ranged and at < source.size:
        try:
            for piece in source.pieces(at, source.size):
                at += len(piece)
                between()
                yield piece
        except Failed as error:
            pause(source.url, error, failures := failures + 1)
    pool, stop = ThreadPoolExecutor(AHEAD, "fetch"), Event()
    try:
        spans, ahead = deque((k, min(k + SPAN, source.size)) for k in range(at, source.size, SPAN)), deque[Any]()
        while spans or ahead:
            while spans and len(ahead) < AHEAD:
                ahead.append(pool.submit(read, source, *spans.popleft(), lambda: not stop.is_set()))
            if wait([ahead[0]], POLL_S).done:
                yield ahead.popleft().result()
            between()
    finally:
        stop.set()
        pool.shutdown(wait=not ahead, cancel_futures=True)  # a process must not fork while it has threads
