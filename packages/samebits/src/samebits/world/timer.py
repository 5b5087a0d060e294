"""The last resort of a process without a parent of ours (a plain command, torchrun's rank): faulthandler's timer.

Where native code holds the GIL, no Python thread of the process can report a hang. The watch thread (watchdog.py) rearms
the timer again and again; if it expires, faulthandler writes the stack of each thread to stderr and ends the process
with status 1. Nothing is put on record: status.json still says running, and a report calls such a run killed.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

REARM_S = 1.0  # between two times that it is rearmed
_limit_s: float | None = None  # of the timer; None: there is none
_armed_at = -math.inf


@contextmanager
def last_resort() -> Iterator[None]:
    """In this block the timer may be armed. A Ctrl-Z takes it away until the process goes on."""
    main = threading.current_thread() is threading.main_thread()
    stops = main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL

    def stop(number: int, frame: Any) -> None:
        disarm()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, stop)

    if stops:
        signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        disarm()
        if stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def rearm(limit_s: float) -> None:
    """The process ends limit_s from now, or up to 2 REARM_S later, unless this or `disarm` is called before."""
    global _limit_s, _armed_at
    if limit_s != _limit_s or time.monotonic() - _armed_at >= REARM_S:
        _limit_s, _armed_at = limit_s, time.monotonic()
        _start()


def disarm() -> None:
    global _limit_s
    _cancel()
    _limit_s = None


def _start() -> None:
    if _limit_s is not None:
        faulthandler.dump_traceback_later(_limit_s + 2 * REARM_S, exit=True, file=2)


def _cancel() -> None:
    if _limit_s is not None:
        faulthandler.cancel_dump_traceback_later()


# a fork has the timer's lock, but not its thread, and would wait for it at its end
os.register_at_fork(before=_cancel, after_in_parent=_start)


def saying(text: str, function: Callable[[], None]) -> Callable[[], None]:
    """The function, with the text as its name in a traceback: faulthandler can write no other text of ours."""

    def named() -> None:
        function()

    named.__code__ = named.__code__.replace(co_name=text)
    return named
