"""A file that is cut short while its mapping is read: zeros for the check that follows, instead of a dead process.

To read a mapping behind the end of its file raises SIGBUS, which kills. The handler here puts zeros there and the
reading goes on; RawFile.check, which comes after each use, says so. Any other SIGBUS does what it did before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import weakref
from typing import Any

PROT_READ, MAP_PRIVATE, MAP_FIXED = 1, 2, 16  # on Linux and macOS; mmap lacks the last one
_libc: Any = None
_before: Any = None


class Mapping:
    """Of a file that somebody keeps open as `fd`. zeros: from which byte on they were put, if they were."""

    def __init__(self, fd: int, address: int, size: int) -> None:
        self.fd, self.address, self.size, self.zeros = fd, address, size, -1

    def fill(self) -> bool:
        page = mmap.PAGESIZE
        begin = -(-os.fstat(self.fd).st_size // page) * page
        if begin >= self.size or begin == self.zeros:
            return False
        self.zeros, at = begin, self.address + begin
        how = MAP_PRIVATE | MAP_FIXED | mmap.MAP_ANONYMOUS
        return _libc.mmap(at, -(-self.size // page) * page - begin, PROT_READ, how, -1, 0) == at


_mapped: dict[weakref.ref[Any], Mapping] = {}


def survive_cuts(file: Any, mapping: Mapping) -> None:
    """file: who keeps the descriptor open."""
    global _libc, _before
    _mapped[weakref.ref(file, lambda gone: _mapped.pop(gone, None))] = mapping
    if _libc is None:
        _libc = ctypes.CDLL(None)
        _libc.mmap.restype = _libc.signal.restype = ctypes.c_void_p
        _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        _libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        _before = _libc.signal(signal.SIGBUS, ctypes.cast(_handler, ctypes.c_void_p))


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _handler(number: int) -> None:
    """Runs in the thread that reads, between two bytes of a copy: Python is as it was when the copy began."""
    try:
        filled = [mapping.fill() for mapping in list(_mapped.values())]
    except Exception:
        filled = []
    if not any(filled):
        _libc.signal(number, _before)  # the byte is read again, and this time kills
