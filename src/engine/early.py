"""Signal handling from the start of a command, as imports and config take seconds. Imports only the standard library.

A scheduler may signal the process before the run starts. The signal is noted, and acted on where nothing is half done:
before the run's directory is written (leave_if_asked), and by the handler installed later (asked).
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
    """Called first in a command that trains."""
    open_standard_streams()
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _note)


def asked() -> str:
    """Returns the name of the first stop signal received by this module's handler; empty if there was none."""
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
    """Open closed streams (2>&-) as /dev/null: else the next opened file would get their number, and the output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for good


def leave_hung_up_terminal() -> None:
    """Redirect output to a closed terminal (a dropped ssh) to /dev/null: writing to it would raise."""
    import termios

    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)
