"""The host's memory: total, and available to this process."""

from __future__ import annotations

import mmap
import os
import resource
from contextlib import suppress
from pathlib import Path

from samebits.host.cgroups import levels_of

PROC = Path("/proc")
_FILES = {  # files with the limit and the usage; entry of the page cache in the statistics
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
}


def memory() -> int | None:
    """Return the bytes of memory of the host; None on a system that does not provide it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    except (ValueError, OSError):
        return None


def available_memory(proc: Path = PROC) -> int:
    """Return the bytes that this process may still allocate: the available memory within the limits of its cgroups and
    of `ulimit -v`. h5rows.reading.memory has a copy.

    The page cache counts as available, because the kernel frees it on demand. If only the total is known (macOS),
    return half of it."""
    try:
        left = [_kilobytes(proc / "meminfo", "MemAvailable")]
    except (OSError, StopIteration):
        left = [(memory() or 0) // 2]
    for version, folder in levels_of("memory", proc / "self"):
        limit, use, of_files = _FILES[version]
        try:
            most, used = (int((folder / name).read_text()) for name in (limit, use))
            pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # the root has no such files, and "max" means no limit
            continue
        left.append(most - used + sum(int(pages.get(name, 0)) for name in of_files))
    with suppress(OSError):
        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        if allowed != resource.RLIM_INFINITY:
            left.append(allowed - _kilobytes(proc / "self/status", "VmSize"))
    return max(0, min(left))


def memory_limit(proc: Path = PROC) -> int | None:
    """Return the memory limit of the container or scheduler in bytes, the smallest of all levels; None if there is
    none below the memory of the host."""
    limits, whole = [], memory()
    for version, folder in levels_of("memory", proc / "self"):
        with suppress(OSError, ValueError):  # the root has no such file, and "max" means no limit
            limits.append(int((folder / _FILES[version][0]).read_text()))
    return min((limit for limit in limits if whole is None or limit < whole), default=None)


def private_memory(proc: Path = PROC) -> int:
    """Return the bytes of this process's private writable memory, which RLIMIT_DATA limits. Linux only."""
    return _kilobytes(proc / "self/status", "VmData")


def _kilobytes(file: Path, name: str) -> int:
    line = next(line for line in file.read_text(errors="replace").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
