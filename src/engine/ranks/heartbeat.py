"""Heartbeats: what a process that is stopped, or whose native code holds its interpreter, cannot say itself.

    starter    Hearts(context, count), a place in shared memory for each process that it starts
    process    take(hearts, index), beat(...) twice a second (watch.py, launch.py), say_ended()
    starter    hearts.overdue() -> the processes that have not beaten in time, and where they were

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

START_S = 600.0  # until the first beat
LATE_S = 1.0  # a beat may come so late on a busy machine; less than the ranks' watches take to find one that hangs
GAP_S = 5.0  # who has not looked for so long was itself stopped (Ctrl-Z), and so were, likely, the others


class Heart(ctypes.Structure):
    """until: by time.monotonic(), which all processes of a machine share. said: how it ends is on record."""

    _fields_ = [
        ("until", ctypes.c_double),
        ("limit_s", ctypes.c_double),
        ("step", ctypes.c_int64),
        ("said", ctypes.c_bool),
        ("doing", ctypes.c_char * 64),
    ]


class Hearts:
    """Of the processes that this one starts. context: multiprocessing's."""

    def __init__(self, context: Any, count: int) -> None:
        self._looked = time.monotonic()
        self.shared = context.RawArray(Heart, count)
        for heart in self.shared:
            heart.until, heart.limit_s = self._looked + START_S, START_S

    def overdue(self) -> list[int]:
        """Those that should have beaten by now, the one that is behind by steps first. To be called again and again."""
        now = time.monotonic()
        if now - self._looked > GAP_S:
            for heart in self.shared:
                heart.until += now - self._looked
        self._looked = now
        late = [i for i, heart in enumerate(self.shared) if now > heart.until + LATE_S and not heart.said]
        return sorted(late, key=lambda i: self.shared[i].step)

    def latest(self) -> float:
        """Seconds until the last of them must have beaten."""
        return max(heart.until for heart in self.shared) - time.monotonic()

    def said(self, index: int) -> bool:
        return bool(self.shared[index].said)

    def place(self, index: int) -> str:
        heart = self.shared[index]
        return f"{heart.doing.decode()}, at step {heart.step}" if heart.doing else "start"

    def why(self, index: int, pid: int) -> str:
        """Why one that is overdue is taken for hung."""
        cause = "it is stopped (SIGSTOP)" if is_stopped(pid) else "native code holds its interpreter"
        limit = f"{self.shared[index].limit_s:g} s (trainer.timeout; {self.place(index)})"
        return f"it did not run for {limit}; {cause}"


_own: Any = None
_moved_at = -math.inf


def take(shared: Any, index: int) -> None:
    """This process's place in its starter's memory."""
    global _own
    _own = shared[index]


def has_starter() -> bool:
    return _own is not None


def at(doing: str, step: int) -> None:
    """What this process does, where it should turn out to hang."""
    if _own is not None:
        _own.doing, _own.step = doing.encode()[:63], step


def beat(limit_s: float | None) -> None:
    """This process runs, and will say so again within limit_s; None: nobody shall mind if it does not."""
    if _own is not None:
        _own.limit_s = math.inf if limit_s is None else limit_s
        _own.until = time.monotonic() + _own.limit_s


def moved() -> None:
    """Long work outside of the loop has come on: a file that is fetched."""
    global _moved_at
    _moved_at = time.monotonic()
    if _own is not None:
        _own.until = max(_own.until, _moved_at + START_S)


def moved_at() -> float:
    return _moved_at


def say_ended() -> None:
    """All is done, or it is on record why it is not."""
    if _own is not None:
        _own.said = True


def is_stopped(pid: int) -> bool:
    """False where it cannot be told."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"
    return False


def abort(process: Any, wait_s: float = 2.0) -> None:
    """End a process that hangs; its faulthandler, which needs no interpreter, writes down where it stood."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGABRT)
        os.kill(process.pid, signal.SIGCONT)  # of a stopped one, which then gets the other
    process.join(wait_s)
    if process.is_alive():
        process.kill()
        process.join(wait_s)


def readable(stack: str) -> str:
    """What faulthandler has written, without its list of modules."""
    return "".join(line for line in stack.splitlines(True) if not line.startswith("Extension modules"))
