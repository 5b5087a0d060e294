"""Locks and write-once files, on any file system. Imports no torch.

A lock is the kernel's (flock), released when the process ends in any way. On file systems without flock (Lustre without
-o flock, NFS without lockd, some FUSE) it is a file beside it that names its holder. A dead holder's file is removed on
the holder's machine; elsewhere the user must do that, as other machines cannot see whether the process lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.files import read_file

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
WAIT_S = 0.05  # between two looks at a holder's file


class Busy(OSError):
    """Another process holds the lock. The text is empty, or the end of a message: what the user can do about it."""


class Lock:
    """Held from its construction until `close`, or the end of this process. path: created if missing.

    wait: block until it is free; else raise Busy. OSError: path cannot be written.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self._holder: _HolderFile | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if not _flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)):
                self._holder = _HolderFile(path)
                self._holder.take(wait)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        if self._holder is not None:
            self._holder.leave()
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
        return not _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB) and _HolderFile(path).is_held()
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


class _HolderFile:
    """A file that exists while somebody holds the lock: {host, pid, began}."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.held")
        self.own = {"host": platform.node(), "pid": os.getpid(), "began": _began(os.getpid())}

    def take(self, wait: bool) -> None:
        while not self._create():
            holder = self._holder()
            if holder is not None and self._is_dead(holder):
                self._bury(holder)
            elif wait:
                time.sleep(WAIT_S)
            else:
                raise Busy(f" - {self.path} names {_named(holder)}; delete it if that process is gone")

    def leave(self) -> None:
        if os.getpid() == self.own["pid"]:  # not a child that was forked meanwhile
            self.path.unlink(missing_ok=True)

    def is_held(self) -> bool:
        holder = self._holder()
        return self.path.exists() and (holder is None or not self._is_dead(holder))

    def _create(self) -> bool:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(fd, "w") as file:
            json.dump(self.own, file)
        return True

    def _holder(self) -> dict[str, Any] | None:
        """None: it has just gone, or has not yet said who it is."""
        with suppress(FileNotFoundError, ValueError):
            holder = json.loads(read_file(self.path))
            return holder if isinstance(holder, dict) and holder.keys() >= self.own.keys() else None
        return None

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        return holder["host"] == self.own["host"] and _began(int(holder["pid"])) != holder["began"]

    def _bury(self, holder: dict[str, Any]) -> None:
        """Remove a dead holder's file. Of several processes only one may, and it checks the holder again before."""
        right = self.path.with_name(f"{self.path.name}.{holder['pid']}")
        try:
            os.close(os.open(right, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            time.sleep(WAIT_S)
            return
        try:
            if self._holder() == holder:
                print(f"{self.path} is left from a process that is gone: {_named(holder)}", file=sys.stderr)
                self.path.unlink(missing_ok=True)
        finally:
            right.unlink(missing_ok=True)


def _named(holder: dict[str, Any] | None) -> str:
    return f"process {holder['pid']} on {holder['host']}" if holder else "no process yet"


def _began(pid: int) -> str | None:
    """Returns the process's start time as text, which tells a later process with this pid apart; None: no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        if os.path.isdir("/proc/self"):
            return None
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() or None
