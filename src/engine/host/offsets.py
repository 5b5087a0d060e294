"""Positions in open files. A forked process shares them with its parent: what one reads moves the other's."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

_OPEN = Path("/proc/self/fd")
_KEPT = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_APPEND | getattr(os, "O_DIRECT", 0)  # flags of a second opening


def file_offsets() -> dict[int, int]:
    """Return {descriptor: position} of the regular files that are open for reading. Call it before a fork, and
    `own_offsets` in the child.

    Standard streams, and what this process holds a lock to write of, are left out: the child shares them. macOS has no
    /proc, and starts processes without a fork."""
    offsets = {}
    for name in os.listdir(_OPEN) if _OPEN.is_dir() else ():
        with suppress(OSError):  # closed meanwhile, as the folder that was listed; or without a position
            fd = int(name)
            readable = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | getattr(os, "O_PATH", 0)) == 0
            if fd > 2 and readable and stat.S_ISREG(os.fstat(fd).st_mode) and not _locked(fd):
                offsets[fd] = os.lseek(fd, 0, os.SEEK_CUR)
    return offsets


def _locked(fd: int) -> bool:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return any(line.startswith("lock:") and " WRITE " in line for line in lines)


def own_offsets(offsets: dict[int, int]) -> None:
    """Give this process, which was forked after `file_offsets`, positions of its own in these files: each is opened a
    second time under its number. An OSError names a file that cannot be."""
    for fd, offset in offsets.items():
        opened = os.open(f"{_OPEN}/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL) & _KEPT)
        try:
            os.lseek(opened, offset, os.SEEK_SET)
            os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
        finally:
            os.close(opened)
