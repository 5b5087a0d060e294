"""Positions in open files. A forked process shares them with its parent, so reading in one moves the other's
position."""

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
# flags that are kept when a file is opened again
_KEPT = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_APPEND | getattr(os, "O_DIRECT", 0)


Offsets = dict[int, tuple[tuple[int, int], int]]  # {descriptor: (device and inode of the file, position)}


def file_offsets() -> Offsets:
    """Return the positions in the regular files that are open for reading. Call it before a fork, and `own_offsets` in
    the child.

    Standard streams, their files, and files that this process has locked for writing are not included; the child shares
    them. macOS has no /proc and does not fork by default; if a fork is requested there, a warning is logged."""
    if not _OPEN.is_dir():
        _tell_shared()
        return {}
    offsets, streams = {}, [_regular(fd) for fd in range(3)]
    for name in os.listdir(_OPEN):
        with suppress(OSError):  # closed in the meantime, like the listed folder, or without a position
            fd = int(name)
            readable = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | getattr(os, "O_PATH", 0)) == 0
            if readable and (file := _regular(fd)) and file not in streams and not _locked(fd):
                offsets[fd] = file, os.lseek(fd, 0, os.SEEK_CUR)
    return offsets


@functools.cache
def _tell_shared() -> None:
    """Warn once per process, which may fork often."""
    log.warning(
        f"there is no {_OPEN}, so forked processes share the positions of open files and may read wrong bytes: open "
        "files where they are read, e.g. in __getitem__, or start processes by spawn"
    )


def _regular(fd: int) -> tuple[int, int] | None:
    """Return (device, inode) of a regular file; None for a pipe, folder, device or closed descriptor."""
    with suppress(OSError):
        facts = os.fstat(fd)
        return (facts.st_dev, facts.st_ino) if stat.S_ISREG(facts.st_mode) else None
    return None


def _locked(fd: int) -> bool:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return any(line.startswith("lock:") and " WRITE " in line for line in lines)


def own_offsets(offsets: Offsets) -> None:
    """Give this process, which was forked after `file_offsets`, separate positions in these files.

    Each file is opened again under the same descriptor. Raise OSError, which names the file, if that fails.
    """
    for fd, (file, offset) in offsets.items():
        if _regular(fd) != file:  # closed by another thread before the fork
            continue
        opened = os.open(f"{_OPEN}/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL) & _KEPT)
        try:
            os.lseek(opened, offset, os.SEEK_SET)
            os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
        finally:
            os.close(opened)
