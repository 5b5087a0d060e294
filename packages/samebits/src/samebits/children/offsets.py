"""Positions in open files. A forked process shares them with its parent: what one reads moves the other's."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("samebits")

_OPEN = Path("/proc/self/fd")
_KEPT = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_APPEND | getattr(os, "O_DIRECT", 0)  # flags of a second opening


Offsets = dict[int, tuple[tuple[int, int], int]]  # {descriptor: (device and inode of the file, position)}


def file_offsets() -> Offsets:
    """Return the positions in the regular files that are open for reading. Call it before a fork, and `own_offsets` in
    the child.

    Standard streams and the files behind them, and what this process holds a lock to write of, are left out: the child
    shares them. macOS has no /proc, and starts processes without a fork; where one is asked for, a line says what the
    child shares."""
    if not _OPEN.is_dir():
        _tell_shared()
        return {}
    offsets, streams = {}, [_regular(fd) for fd in range(3)]
    for name in os.listdir(_OPEN):
        with suppress(OSError):  # closed meanwhile, as the folder that was listed; or without a position
            fd = int(name)
            readable = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | getattr(os, "O_PATH", 0)) == 0
            if readable and (file := _regular(fd)) and file not in streams and not _locked(fd):
                offsets[fd] = file, os.lseek(fd, 0, os.SEEK_CUR)
    return offsets


@functools.cache
def _tell_shared() -> None:
    """Once in a process, which may fork often."""
    log.warning(
        f"there is no {_OPEN}, so forked processes share their positions in files that are open now, and may read each "
        "other's bytes: open files where they are read, as in __getitem__, or start processes by spawn"
    )


def _regular(fd: int) -> tuple[int, int] | None:
    """Return which file it is; None for a pipe, a folder, a device, and for what is closed."""
    with suppress(OSError):
        facts = os.fstat(fd)
        return (facts.st_dev, facts.st_ino) if stat.S_ISREG(facts.st_mode) else None
    return None


def _locked(fd: int) -> bool:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return any(line.startswith("lock:") and " WRITE " in line for line in lines)


def own_offsets(offsets: Offsets) -> None:
    """Give this process, which was forked after `file_offsets`, positions of its own in these files: each is opened a
    second time under its number. An OSError names a file that cannot be."""
    for fd, (file, offset) in offsets.items():
        if _regular(fd) != file:  # closed by another thread before the fork
            continue
        opened = os.open(f"{_OPEN}/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL) & _KEPT)
        try:
            os.lseek(opened, offset, os.SEEK_SET)
            os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
        finally:
            os.close(opened)
