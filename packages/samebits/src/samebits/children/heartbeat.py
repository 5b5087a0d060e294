"""Heartbeats in shared memory, to detect a child that is stopped by a signal or whose native code holds the GIL.

    parent     Heartbeats(context, count): one Heartbeat in shared memory per child
    child      register_heartbeat(shared, index), beat(...) twice a second (watchdog.py, launch.py), mark_finished()
    parent     heartbeats.overdue() -> indices of children without a heartbeat in time

Does not import torch.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from contextlib import suppress
from typing import Any

from samebits.children.parent import process_state
from samebits.errors import ConfigError

START_S = 600.0  # seconds until the first beat
ABORT_S = 2.0  # seconds for a hung process to write its stack trace and end
LATE_S = 1.0  # seconds of tolerance for a busy machine; less than the time in which a rank's watchdog detects a hang
# after a longer gap between checks, the parent itself was stopped (Ctrl-Z), and probably the children as well
GAP_S = 5.0
# of a process that crashes, by their names in faulthandler's output
_FAULTS = {
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}


class Heartbeat(ctypes.Structure):
    """The heartbeat of one child. until: deadline of the next beat in time.monotonic(), which all processes of a
    machine share. said: its end is recorded."""

    _fields_ = [
        ("until", ctypes.c_double),
        ("limit_s", ctypes.c_double),
        ("step", ctypes.c_int64),
        ("said", ctypes.c_bool),
        ("doing", ctypes.c_char * 64),
    ]


class Heartbeats:
    """The heartbeats of `count` child processes. context: a context of multiprocessing. Raise ConfigError if there is
    no shared memory."""

    def __init__(self, context: Any, count: int) -> None:
        self._looked = time.monotonic()
        try:
            self.shared = context.RawArray(Heartbeat, count)
        except OSError as error:
            raise ConfigError(
                f"processes of ranks and jobs need shared memory ({error}); mount /dev/shm - a single run with "
                "trainer=single needs none"
            ) from None
        for entry in self.shared:
            entry.until, entry.limit_s = self._looked + START_S, START_S

    def overdue(self) -> list[int]:
        """Return the indices of processes past their deadline, fewest steps first. Call this at least every GAP_S."""
        now = time.monotonic()
        if now - self._looked > GAP_S:
            for entry in self.shared:
                entry.until += now - self._looked
        self._looked = now
        late = [i for i, entry in enumerate(self.shared) if now > entry.until + LATE_S and not entry.said]
        return sorted(late, key=lambda i: self.shared[i].step)

    def latest(self) -> float:
        """Return the seconds until the latest deadline of all processes."""
        return max(entry.until for entry in self.shared) - time.monotonic()

    def said(self, index: int) -> bool:
        """Return True if the end of the process is recorded."""
        return bool(self.shared[index].said)

    def place(self, index: int) -> str:
        """Return the work and step of a process, for a message."""
        entry = self.shared[index]
        return f"{entry.doing.decode()}, at step {entry.step}" if entry.doing else "start"

    def why(self, index: int, pid: int) -> str:
        """Return the reason why an overdue process counts as hung, for a message."""
        cause = "it is stopped (SIGSTOP)" if process_state(pid) in ("T", "t") else "native code holds its interpreter"
        limit = f"{self.shared[index].limit_s:g} s (process.timeout; {self.place(index)})"
        return f"it did not run for {limit}; {cause}"


_own: Any = None
_moved_at = -math.inf


def register_heartbeat(shared: Any, index: int) -> None:
    """Use entry `index` of the parent's shared Heartbeats for this process."""
    global _own
    _own = shared[index]


def has_starter() -> bool:
    """Return True if a parent watches this process's heartbeat."""
    return _own is not None


def note_step(doing: str, step: int) -> None:
    """Record what this process does and at which step, for the message if it hangs."""
    if _own is not None:
        _own.doing, _own.step = doing.encode()[:63], step


def beat(limit_s: float | None) -> None:
    """Set the deadline of the next beat to limit_s from now; None: no deadline."""
    if _own is not None:
        _own.limit_s = math.inf if limit_s is None else limit_s
        _own.until = time.monotonic() + _own.limit_s


def note_progress() -> None:
    """Extend the deadline by START_S, because long work outside of the loop, such as a download, made progress."""
    global _moved_at
    _moved_at = time.monotonic()
    if _own is not None:
        _own.until = max(_own.until, _moved_at + START_S)


def progress_at() -> float:
    """Return the time of the last progress, in time.monotonic() seconds."""
    return _moved_at


def mark_finished() -> None:
    """Record that this process has finished, or that its failure is recorded."""
    if _own is not None:
        _own.said = True


def abort_hung(process: Any) -> None:
    """Kill a hung process with SIGABRT: its faulthandler, which does not need the GIL, writes a stack trace."""
    # os.kill's signal could be delivered to any thread, while the main thread continues; tgkill chooses the main thread
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # in glibc since 2.30
    with suppress(ProcessLookupError):
        if tgkill is None or tgkill(process.pid, process.pid, signal.SIGABRT):
            os.kill(process.pid, signal.SIGABRT)
        os.kill(process.pid, signal.SIGCONT)  # a stopped process receives SIGABRT when it continues
    process.join(ABORT_S)
    if process.is_alive():
        process.kill()
        process.join(ABORT_S)


def first_signal(exit_code: int, stack: str) -> int:
    """Return the exit code with the signal that faulthandler has written first. stack: its output.

    faulthandler also writes the stacks of other threads. These still run, and may free the frames that it reads. So a
    process with an error of another kind, e.g. SIGBUS, can end by SIGSEGV.
    """
    for name, number in _FAULTS.items():
        if exit_code == -signal.SIGSEGV and stack.startswith(f"Fatal Python error: {name}"):
            return -number
    return exit_code


def readable_stack(stack: str) -> str:
    """Return faulthandler's output without its list of extension modules."""
    return "".join(line for line in stack.splitlines(True) if not line.startswith("Extension modules"))
