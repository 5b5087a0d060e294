"""One process at a time, by the kernel's lock of a file (flock): it ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Busy(OSError):
    """Another process holds the lock."""


class Lock:
    """Held from its construction until `close`, or the end of this process. path: created if missing; its holder may
    delete it. Raises Busy where another holds it; OSError where it cannot be written, or locked on its file system."""

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
            os.close(self._fd)  # its holder deleted the file after it was opened here: a lock of nothing

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
