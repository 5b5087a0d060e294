"""A timer that ends a process which hangs in native code: faulthandler's timer, the last resort without a launcher.

It is used by a plain command and by ranks of torchrun. If native code holds the GIL, no Python thread can report a
hang. The watch thread (watchdog.py) rearms the timer regularly; if the timer expires, faulthandler writes the stack of
each thread to stderr and exits with status 1. The failure is not recorded: status.json contains `running`, and reports
show the run as killed."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

REARM_S = 1.0  # seconds between rearming
_limit_s: float | None = None  # limit of the timer; None: it is not armed
_armed_at = -math.inf


@contextmanager
def last_resort() -> Iterator[None]:
    """Allow the timer within the block. Ctrl-Z disarms it until the process continues."""
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
    """End the process after limit_s, or up to 2 REARM_S later, unless this or `disarm` is called before."""
    global _limit_s, _armed_at
    if limit_s != _limit_s or time.monotonic() - _armed_at >= REARM_S:
        _limit_s, _armed_at = limit_s, time.monotonic()
        _start()


def disarm() -> None:
    """Disarm the timer."""
    global _limit_s
    _cancel()
    _limit_s = None


def _start() -> None:
    if _limit_s is not None:
        with suppress(RuntimeError):  # no more threads (ulimit -u): the next rearm tries again
            faulthandler.dump_traceback_later(_limit_s + 2 * REARM_S, exit=True, file=2)


def _cancel() -> None:
    if _limit_s is not None:
        faulthandler.cancel_dump_traceback_later()


# a fork inherits the timer's lock but not its thread, and would wait for it when it exits
os.register_at_fork(before=_cancel, after_in_parent=_start)


def saying(text: str, function: Callable[[], None]) -> Callable[[], None]:
    """Return the function with the text as its name in a traceback, because faulthandler cannot write other text."""

    def named() -> None:
        function()

    named.__code__ = named.__code__.replace(co_name=text)
    return named
