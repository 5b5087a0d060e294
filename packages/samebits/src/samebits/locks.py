"""Locks and write-once files, on any file system. Imports no torch.

A lock is the kernel's (flock), released when the process ends in any way. On file systems without flock (Lustre without
-o flock, NFS without lockd, some FUSE) it is a file beside it that names its holder, by the package filelock. A dead
holder's file is removed on the holder's machine; elsewhere the user must do that, as other machines cannot see whether
the process lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.files import read_text

if TYPE_CHECKING:
    from filelock import SoftFileLock  # imported where there is no flock: it takes 40 ms

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class Busy(OSError):
    """Another process holds the lock. The text is empty, or the end of a message: what the user can do about it."""


class Lock:
    """Held from its construction until `close`, or the end of this process. path: created if missing.

    wait: block until it is free; else raise Busy. OSError: path cannot be written.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self._marker: SoftFileLock | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if not _flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)):
                self._marker = _mark(_marker_of(path), wait)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        if self._marker is not None:
            self._marker.release()  # does nothing in a child that was forked meanwhile
        os.close(self._fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if not _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB) and (marker := _marker_of(path)).exists():
            _mark(marker, wait=False).release()
        return False
    except Busy:
        return True
    finally:
        os.close(fd)


def write_once(path: Path, text: str) -> bool:
    """Write a file atomically unless it exists. Returns whether this call wrote it."""
    own = f"{platform.node()}.{os.getpid()}"
    temporary = path.with_name(f".{path.name}.{own}")
    temporary.unlink(missing_ok=True)  # left from a process of this number, or a link to somewhere else
    try:
        with open(temporary, "x") as file:
            file.write(text)
        try:
            os.link(temporary, path)  # fails where the file exists: whole and exclusive at once
        except FileExistsError:
            return False
        except OSError:  # no hard links here
            return _write_marked(path, temporary)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _write_marked(path: Path, temporary: Path) -> bool:
    """write_once without hard links: the process that creates the marker file may rename."""
    marker = path.with_name(f".{path.name}.writing")
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return False
    try:
        if path.exists():
            return False
        temporary.replace(path)
        return True
    finally:
        marker.unlink(missing_ok=True)


def _flock(fd: int, how: int) -> bool:
    """False: this file system has no such locks."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        raise Busy from None
    except OSError as error:
        if error.errno in NO_FLOCK:
            return False
        raise
    return True


def _marker_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")  # not `path` itself, which may have content


def _mark(marker: Path, wait: bool) -> SoftFileLock:
    """Create the file that is a lock where there is no flock; raises Busy."""
    from filelock import SoftFileLock, Timeout

    lock = SoftFileLock(marker, timeout=-1 if wait else 0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise Busy(f" - {marker} names {_holder(marker)}; delete it if that process is gone") from None
    return lock


def _holder(marker: Path) -> str:
    """filelock writes a line with the process, one with its host, and one that tells it from a later process."""
    with suppress(FileNotFoundError):
        pid, host, *_ = (*read_text(marker, errors="replace").splitlines(), "", "")
        if pid.isdigit():
            return f"process {pid} on {host}"
    return "no process yet"
