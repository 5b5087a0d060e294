"""Locks and write-once files, on any file system. Does not import torch.

A lock is a kernel lock (flock), which is released when the process ends in any way. File systems without flock (Lustre
without -o flock, NFS without lockd, some FUSE) use a marker file of the package filelock that names the holder. On the
holder's machine, the marker of a dead process is removed automatically. On other machines you must remove it, because
they cannot check the process.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.files import read_text

if TYPE_CHECKING:
    from filelock import SoftFileLock  # imported only without flock, because it takes 40 ms

PATIENCE_S = 0.2  # `is_locked` of another process holds a lock for a moment, and a killed process until it is removed
POLL_S = 0.01
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class Busy(OSError):
    """Another process holds the lock. The text is "", or the end of a message with a remedy."""


class Lock:
    """A lock that is held from its construction until `close` or the end of this process.

    path: created if it is missing. wait_s: seconds to wait until the lock is free; then raise Busy. math.inf: block.
    Raise OSError if the path cannot be written.
    """

    def __init__(self, path: Path, wait_s: float = PATIENCE_S) -> None:
        self._marker: SoftFileLock | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if not _flock_within(self._fd, wait_s):
                self._marker = _mark(marker_of(path), wait_s)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Release the lock."""
        if self._marker is not None:
            self._marker.release()  # has no effect in a child that was forked in the meantime
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor. A child process that inherits it holds the lock, too, until it ends."""
        return self._fd

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock. The file may be another user's, so it is only read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if not _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB) and (marker := marker_of(path)).exists():
            _mark(marker, wait_s=0.0).release()
        return False
    except (Busy, PermissionError):  # the marker of a dead process cannot be removed from another user's folder
        return True
    finally:
        os.close(fd)


def write_once(path: Path, text: str) -> bool:
    """Write a file atomically unless it exists. Return True if this call wrote it."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left by a process with this number, or a link
    try:
        with open(temporary, "x") as file:
            file.write(text)
        try:
            os.link(temporary, path)  # atomic and exclusive: fails if the file exists
        except FileExistsError:
            return False
        except OSError:  # this file system has no hard links
            return _write_marked(path, temporary)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _write_marked(path: Path, temporary: Path) -> bool:
    """Write once without hard links: the process that creates the marker file may rename."""
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


def _flock_within(fd: int, wait_s: float) -> bool:
    """Lock for writing. Return False if this file system does not support flock. Raise Busy after wait_s seconds."""
    if wait_s == math.inf:
        return _flock(fd, fcntl.LOCK_EX)
    until = time.monotonic() + wait_s
    while True:
        try:
            return _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except Busy:
            if time.monotonic() >= until:
                raise
        time.sleep(POLL_S)


def _flock(fd: int, how: int) -> bool:
    """Call flock. Return False if this file system does not support it."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        raise Busy from None
    except OSError as error:
        if error.errno in NO_FLOCK:
            return False
        raise
    return True


def marker_of(path: Path) -> Path:
    """Return the marker file that replaces the kernel lock of `path` on a file system without flock."""
    return path.with_name(f"{path.name}.held")  # not `path`, which may have content


def is_marked_elsewhere(path: Path) -> bool:
    """Return True if the lock is held by the marker of a process of another host, so that nobody here can check if this
    process is alive."""
    try:
        with open(path, "rb") as file:
            if _flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB):
                return False
    except (Busy, FileNotFoundError):
        return False
    return _holder(marker_of(path))[1] not in ("", platform.node())


def _mark(marker: Path, wait_s: float) -> SoftFileLock:
    """Create the marker file that replaces flock. Raise Busy if it still exists after wait_s seconds."""
    from filelock import SoftFileLock, Timeout

    lock = SoftFileLock(marker, timeout=-1 if wait_s == math.inf else wait_s, thread_local=False)
    for _ in range(2):  # filelock before 4.2 removes the marker of a dead process, but does not try again
        try:
            lock.acquire()
            return lock
        except Timeout:
            if marker.exists():
                break
    raise Busy(f" - {marker} names {_named(*_holder(marker))}; delete it if that process is gone")


def _holder(marker: Path) -> tuple[str, str]:
    """Return (process, host) of a marker's holder; empty if it is not known. filelock writes a line with each, and one
    with a token of the process."""
    with suppress(FileNotFoundError):
        pid, host, *_ = (*read_text(marker, errors="replace").splitlines(), "", "")
        return pid, host
    return "", ""


def _named(pid: str, host: str) -> str:
    return f"process {pid} on {host}" if pid.isdigit() else "no process yet"
