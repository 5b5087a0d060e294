"""Heartbeats in shared memory: how a parent finds a child that is stopped, or whose native code holds the GIL.

    parent     Heartbeats(context, count): one Heartbeat in shared memory per child
    child      register_heartbeat(shared, index), beat(...) twice a second (watchdog.py, launch.py), mark_finished()
    parent     heartbeats.overdue() -> indices of the children that have not beaten in time

Imports no torch.
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

START_S = 600.0  # limit for the first beat
LATE_S = 1.0  # tolerance for a busy machine; below the time in which the ranks' watchdogs find a hang
GAP_S = 5.0  # a longer gap between checks: the parent itself was stopped (Ctrl-Z), and likely the children too


class Heartbeat(ctypes.Structure):
    """One child. until: deadline of the next beat, by time.monotonic() (one clock for all processes of a machine).
    said: its end is on record."""

    _fields_ = [
        ("until", ctypes.c_double),
        ("limit_s", ctypes.c_double),
        ("step", ctypes.c_int64),
        ("said", ctypes.c_bool),
        ("doing", ctypes.c_char * 64),
    ]


class Heartbeats:
    """The heartbeats of `count` processes that this one starts. context: multiprocessing's."""

    def __init__(self, context: Any, count: int) -> None:
        self._looked = time.monotonic()
        self.shared = context.RawArray(Heartbeat, count)
        for heart in self.shared:
            heart.until, heart.limit_s = self._looked + START_S, START_S

    def overdue(self) -> list[int]:
        """Indices of the processes past their deadline, fewest steps first. Call this at least every GAP_S."""
        now = time.monotonic()
        if now - self._looked > GAP_S:
            for heart in self.shared:
                heart.until += now - self._looked
        self._looked = now
        late = [i for i, heart in enumerate(self.shared) if now > heart.until + LATE_S and not heart.said]
        return sorted(late, key=lambda i: self.shared[i].step)

    def latest(self) -> float:
        """Seconds until the latest deadline of them."""
        return max(heart.until for heart in self.shared) - time.monotonic()

    def said(self, index: int) -> bool:
        return bool(self.shared[index].said)

    def place(self, index: int) -> str:
        heart = self.shared[index]
        return f"{heart.doing.decode()}, at step {heart.step}" if heart.doing else "start"

    def why(self, index: int, pid: int) -> str:
        """The reason why an overdue process is taken for hung, for a message."""
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
    """Long work outside of the loop has made progress, such as a download: extend the deadline by START_S."""
    global _moved_at
    _moved_at = time.monotonic()
    if _own is not None:
        _own.until = max(_own.until, _moved_at + START_S)


def progress_at() -> float:
    return _moved_at


def mark_finished() -> None:
    """This process has finished, or its failure is on record."""
    if _own is not None:
        _own.said = True


def abort_hung(process: Any, wait_s: float = 2.0) -> None:
    """End a hung process; SIGABRT makes its faulthandler, which needs no GIL, write its stack."""
    # any thread of a stopped process could take os.kill's, while the main thread runs on from where it stood
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc's, since 2.30
    with suppress(ProcessLookupError):
        if tgkill is None or tgkill(process.pid, process.pid, signal.SIGABRT):
            os.kill(process.pid, signal.SIGABRT)
        os.kill(process.pid, signal.SIGCONT)  # a stopped process receives SIGABRT only once it continues
    process.join(wait_s)
    if process.is_alive():
        process.kill()
        process.join(wait_s)


def readable_stack(stack: str) -> str:
    """faulthandler's output without its list of extension modules."""
    return "".join(line for line in stack.splitlines(True) if not line.startswith("Extension modules"))
