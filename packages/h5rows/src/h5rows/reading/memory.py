"""Compare declared sizes with the free memory and the file's size before anything is allocated, because a few bytes of
a damaged file may declare any size."""

from __future__ import annotations

import math
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import h5py

from h5rows.errors import ConfigError
from h5rows.reading.stored import file_name

CHEAP = 64 << 20  # bytes; smaller sizes are not checked
COPIES = 3  # copies of a row or chunk that are in memory at once: by HDF5, by this library, in the batch
MOST_TIMES, MOST_BYTES = 20, 1 << 30  # a declared size may be this multiple of the file's size, or this many bytes


PROC = Path("/proc")
_FILES = {  # of a control group, by its version: the limit, the usage; entries of the page cache in memory.stat
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
}


def available(proc: Path = PROC) -> int:
    """Return the bytes that this process may still allocate: the available memory within the limits of its control
    groups (containers, schedulers) and of `ulimit -v`.

    The page cache counts as available, because the kernel frees it on demand. If only the total is known (macOS),
    return half of it."""
    try:
        free = [_kilobytes(proc / "meminfo", "MemAvailable")]
    except (OSError, StopIteration):
        free = [os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2]
    for version, folder in _groups(proc / "self"):
        limit, use, of_files = _FILES[version]
        with suppress(OSError, ValueError):  # the root has no such files, and "max" means no limit
            most, used = (int((folder / name).read_text()) for name in (limit, use))
            pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(most - used + sum(int(pages.get(name, 0)) for name in of_files))
    with suppress(OSError):
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            free.append(most - _kilobytes(proc / "self/status", "VmSize"))
    return max(0, min(free))


def _groups(process: Path) -> Iterator[tuple[int, Path]]:
    """Yield (version, folder) of the control groups that may limit the process's memory, innermost first."""
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text(errors="surrogateescape").splitlines()]
        lines = (process / "mountinfo").read_text(errors="surrogateescape").splitlines()
        mounts = [[word.replace(r"\040", " ") for word in line.split(" ")] for line in lines]
    except OSError:  # not Linux
        return
    for mount in mounts:
        root, point, (kind, _, options) = mount[3], Path(mount[4]), mount[mount.index("-") + 1 :][:3]
        for _, controllers, path in groups:
            if (kind, controllers) == ("cgroup2", ""):
                version = 2
            elif kind == "cgroup" and "memory" in options.split(",") and "memory" in controllers.split(","):
                version = 1
            else:
                continue
            # in a container the path may be the host's, while the mount shows the container's group as the root
            inside = os.path.relpath(path, root)
            folder = point if inside.startswith("..") else point / inside
            for level in [folder, *folder.parents][: len(folder.parts) - len(point.parts) + 1]:
                yield version, level


def _kilobytes(file: Path, name: str) -> int:
    line = next(line for line in file.read_text(errors="replace").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def check_memory(size: int, what: str) -> None:
    """Raise ConfigError if this process cannot allocate `size` bytes. what: subject of the message."""
    if size > CHEAP and size > (free := available()):
        raise ConfigError(f"{what} take {size / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are free")


def check_declared(dset: h5py.Dataset) -> None:
    """Raise ConfigError if a row, or a chunk that contains it, is larger than the memory or implausible for the
    file."""
    if not dset.shape:
        return
    where, item = f"{file_name(dset)}: {dset.name}", dset.id.get_type().get_size()
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
