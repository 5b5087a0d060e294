"""Compare declared sizes with the free memory and the file's size before anything is allocated, because a few bytes of
a damaged file may declare any size."""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from pathlib import Path

import h5py

from h5rows.errors import ConfigError

CHEAP = 64 << 20  # bytes; smaller sizes are not checked
COPIES = 3  # copies of a row or chunk that are in memory at once: by HDF5, by this library, in the batch
MOST_TIMES, MOST_BYTES = 20, 1 << 30  # a declared size may be this multiple of the file's size, or this many bytes


def available() -> int:
    """Return the bytes of memory that this process may still allocate, as far as the system reports it."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):
        free.append(_kilobytes("/proc/meminfo", "MemAvailable"))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    with suppress(OSError, ValueError):
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            free.append(limit - _kilobytes("/proc/self/status", "VmSize"))
    return max(0, min(free))


def _kilobytes(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 1 << 62)


def check_memory(size: int, what: str) -> None:
    """Raise ConfigError if this process cannot allocate `size` bytes. what: subject of the message."""
    if size > CHEAP and size > (free := available()):
        raise ConfigError(f"{what} take {size / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are free")


def check_declared(dset: h5py.Dataset) -> None:
    """Raise ConfigError if a row, or a chunk that contains it, is larger than the memory or implausible for the
    file."""
    if not dset.shape:
        return
    where, item = f"{dset.file.filename}: {dset.name}", dset.id.get_type().get_size()
    sizes = {"row": math.prod(dset.shape[1:]) * item, "chunk": math.prod(dset.chunks or (0,)) * item}
    part = max(sizes, key=sizes.__getitem__)
    check_memory(COPIES * sizes[part], f"{where}: {COPIES} copies of a {part}, required to read it,")
    check_written(dset, sizes[part], f"one {part}")


def check_written(dset: h5py.Dataset, size: int, what: str) -> None:
    """Raise ConfigError if the file is too small to contain `size` bytes, even if compressed. what: for the message."""
    if size > MOST_BYTES and not (dset.is_virtual or dset.external):
        check_size(f"{dset.file.filename}: {dset.name}", size, dset.file.id.get_filesize(), what)


def check_size(where: str, size: int, held: int, what: str) -> None:
    """Raise ConfigError if a file of `held` bytes cannot contain `size` bytes. where, what: for the message."""
    if size > MOST_BYTES and size > MOST_TIMES * held:
        declared = f"declares {size / 1e9:,.1f} GB for {what}, but the file has {held:,} bytes"
        raise ConfigError(f"{where} {declared}: most was never written; make it smaller")
