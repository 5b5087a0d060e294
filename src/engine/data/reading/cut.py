"""A mapped file whose bytes cannot be read any more: zeros and one error, instead of a dead process.

Reading a mapping behind the end of a file that was cut short, or where the disk or the network file system gives up,
raises SIGBUS. The handler here puts zeros there, notes it, and the reading goes on; RawFile.check, which comes after
each use, sees the note and raises.

It is Python, and runs inside the signal: ctypes has C call it (a handler of Python's signal module would be called only
after the reading instruction, which never ends). Why that is sound for the mappings here:

- The signal is synchronous: the thread stands at an instruction that reads the mapping, so inside no malloc and with no
  lock held; waiting for the interpreter's lock, with the copy's thread holding it or not, is what any callback does.
- The kernel names the address. Whatever lies in no mapping of these, or was sent by a process, goes to the handler that
  was there before, or kills as it always did.
- What the handler does can be repeated: two threads at the same page both put zeros there.

A handler in C would also be sound for a signal that is sent while the thread is inside malloc, and needs a compiler.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref
from typing import Any

import numpy as np

PROT_READ, MAP_PRIVATE, MAP_FIXED = 1, 2, 16  # on Linux and macOS; mmap lacks the last one
_MACOS = sys.platform == "darwin"
_SIGINFO = 0x40 if _MACOS else 4


class _Info(ctypes.Structure):
    """The beginning of siginfo_t."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),  # above 0: from the kernel
        ("unused", ctypes.c_int * (3 if _MACOS else 1)),
        ("address", ctypes.c_void_p),
    )


class _Action(ctypes.Structure):
    """struct sigaction."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint32 if _MACOS else ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Mapping:
    """All of a file, read-only: `data`, (size,) uint8. broken: bytes could not be read, and are zeros there."""

    def __init__(self, fd: int, size: int) -> None:
        held = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        self.madvise = held.madvise
        self.data = np.frombuffer(held, dtype=np.uint8)
        self._range = _Range(self.data.ctypes.data, size)
        _ranges[weakref.ref(held, lambda gone: _ranges.pop(gone, None))] = self._range
        _take_signal()

    @property
    def broken(self) -> bool:
        return self._range.broken


class _Range:
    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.broken = address, size, False

    def fill(self, at: int) -> bool:
        """Zeros from the page of the address `at` on; False if that lies elsewhere."""
        if not self.address <= at < self.address + self.size:
            return False
        self.broken, begin = True, at // mmap.PAGESIZE * mmap.PAGESIZE
        how = MAP_PRIVATE | MAP_FIXED | mmap.MAP_ANONYMOUS
        return _libc.mmap(begin, self.address + self.size - begin, PROT_READ, how, -1, 0) == begin


_ranges: dict[weakref.ref[mmap.mmap], _Range] = {}  # while somebody holds the mapping
_libc: Any = None
_before = _Action()


def _take_signal() -> None:
    """Anew with each mapping: a fork may have let others take it, as PyTorch's workers and faulthandler do."""
    global _libc, _before
    if _libc is None:
        _libc = ctypes.CDLL(None)
        _libc.mmap.restype = ctypes.c_void_p
        _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    ours, found = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p), flags=_SIGINFO), _Action()
    _libc.sigaction(signal.SIGBUS, ctypes.byref(ours), ctypes.byref(found))
    if found.handler != ours.handler:
        _before = found


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p)  # type: ignore[misc, untyped-decorator]
def _handler(number: int, info: Any, context: int | None) -> None:
    global _before
    at, from_kernel = info.contents.address or 0, info.contents.code > 0
    try:
        ours = from_kernel and any(found.fill(at) for found in list(_ranges.values()))
    except Exception:
        ours = False
    if not ours:
        _libc.sigaction(number, ctypes.byref(_before), None)
        _before = _Action()  # the default: should the one before call this one again
        if not from_kernel:  # else the byte is read again, and this time kills
            signal.raise_signal(number)
