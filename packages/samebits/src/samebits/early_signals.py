"""Signal handling from the start of a command, as imports and config take seconds. Imports only the standard library.

A scheduler may signal the process before the run starts. The signal is noted, and acted on where nothing is half done:
before the run's directory is written (leave_if_asked), and by the handler installed later (asked). A second one ends
the command at once, up to where the run's directory is written. Once a run has ended its outcome and the exit status
stand: further signals change neither (note_only, ignore_signals).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from samebits.errors import INTERRUPTED, PREEMPTED

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_asked: list[str] = []
OFF, IMPORTS, BEGINS, RUNS = range(4)  # stages of a command that trains
_stage = OFF


def prepare() -> None:
    """Called first in a command that trains."""
    global _stage
    _stage = IMPORTS
    open_standard_streams()
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _note)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        allow_interrupt()


def allow_interrupt() -> None:
    """From here on a Ctrl-C ends the command, once."""
    if _stage != OFF:
        signal.signal(signal.SIGINT, _interrupt)


def imported() -> None:
    """The command's own code begins, which can be left by an exception."""
    global _stage
    _stage = max(_stage, BEGINS)


def begin_run(own_process: bool = False) -> None:
    """What was asked for is left to the run from here on. own_process: this one ends with its run, as a rank's does,
    and begins anew with what its parent was asked for."""
    global _stage
    if own_process:
        _asked.clear()
    if own_process or _stage != OFF:
        _stage = RUNS


def ends_with_run() -> bool:
    """Whether this process ends when its run has ended. (Not a notebook, a test.)"""
    return _stage != OFF


def asked() -> str:
    """Returns the name of the first stop signal received by this module's handler; empty if there was none."""
    return _asked[0] if _asked else ""


def leave_if_asked() -> None:
    if _asked:
        _say(f"{asked()}: stopped before the run began\n")
        raise SystemExit(PREEMPTED)


def note_only(number: int, frame: Any) -> None:
    """The handler behind a run, whose outcome and exit status stand; of another run to come, it is asked."""
    leave_hung_up_terminal()
    _asked.append(signal.Signals(number).name)


def ignore_signals() -> None:
    """The exit status stands: nothing may change it any more. (Python gives up handlers before a process is gone, and
    with them what a signal does; what is ignored stays ignored.)"""
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)


def _note(number: int, frame: Any) -> None:
    again = bool(_asked)
    note_only(number, frame)
    if again and _stage == IMPORTS:  # an exception would be raised within somebody's import
        _say(f"{asked()}: stopped before the run began\n")
        os._exit(PREEMPTED)
    if again and _stage == BEGINS:
        ignore_signals()
        raise SystemExit(PREEMPTED)


def _interrupt(number: int, frame: Any) -> None:
    ignore_signals()
    if _stage == IMPORTS:
        os._exit(INTERRUPTED)
    raise Interrupted(INTERRUPTED)


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C: where nothing catches it the exit status is 130, and no traceback is shown."""


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())


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
