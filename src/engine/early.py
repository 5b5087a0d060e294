"""What a command does before all else, as its imports and its config take seconds. Imports the standard library alone.

A scheduler may ask it to stop before there is a run. That is noted here, and acted upon where nothing is half done:
before the run's directory is written (leave_if_asked), and by whoever takes the signals over (asked).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from engine.errors import PREEMPTED

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name))
_asked: list[str] = []


def prepare() -> None:
    """First of all in a command that trains."""
    open_standard_streams()
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _note)


def asked() -> str:
    """The name of the first signal that asked to stop before anybody else took the signals; empty: none has."""
    return _asked[0] if _asked else ""


def leave_if_asked() -> None:
    if _asked:
        with suppress(OSError):
            os.write(2, f"{asked()}: stopped before the run began\n".encode())
        raise SystemExit(PREEMPTED)


def _note(number: int, frame: Any) -> None:
    leave_hung_up_terminal()
    again = bool(_asked)
    _asked.append(signal.Signals(number).name)
    if again:
        raise SystemExit(PREEMPTED)


def open_standard_streams() -> None:
    """Closed ones (2>&-) become /dev/null: else the next file that is opened would get what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for good


def leave_hung_up_terminal() -> None:
    """What is printed to a terminal that has gone (an ssh that dropped) would raise: it goes to /dev/null."""
    import termios

    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)
