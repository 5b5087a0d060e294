"""A lock between processes, by the kernel's lock of a file (flock), which is released when its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Busy(OSError):
    """Another process has the lock."""


class Lock:
    """A lock from its construction until `close`, or the end of this process.

    path: created if missing; the owner of the lock may delete it. Raise Busy if another process has the lock; OSError
    if the file cannot be written, or its file system cannot lock it.
    """

    def __init__(self, path: Path) -> None:
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._fd).st_nlink:
                    return
            except OSError as error:
                os.close(self._fd)
                if isinstance(error, BlockingIOError):
                    raise Busy from None
                raise
            os.close(self._fd)  # its owner deleted the file after it was opened here, so the lock has no effect

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
