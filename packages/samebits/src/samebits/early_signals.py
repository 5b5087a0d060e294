"""Signal handling from the start of a command, because imports and config take seconds. Uses only the standard library.

A scheduler may signal the process before the run starts. The signal is noted and handled when it cannot leave anything
incomplete: before the run directory is written (leave_if_asked), and by the handler that is installed later (asked). A
second signal ends the command immediately until the run directory is written. When a run has ended, its outcome and
exit status are final: further signals do not change them (note_only, ignore_signals)."""

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
    """Install the early handlers. Call this first in a command that trains."""
    global _stage
    _stage = IMPORTS
    open_standard_streams()
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _note)
    # not if a shell ignores Ctrl-C, as it does for a background job, nor if a debugger handles it
    usual = signal.default_int_handler
    if signal.getsignal(signal.SIGINT) in (usual, getattr(sys.modules.get("_python"), "leave_imports", usual)):
        allow_interrupt()


def allow_interrupt() -> None:
    """Allow Ctrl-C to end the command, once, from now on."""
    if _stage != OFF:
        signal.signal(signal.SIGINT, _interrupt)


def imported() -> None:
    """Record that imports have finished, so that the command can be left with an exception."""
    global _stage
    _stage = max(_stage, BEGINS)


def begin_run(own_process: bool = False) -> None:
    """Leave noted signals to the run from now on. own_process: this process ends with its run, like a rank; signals
    that its parent has noted are cleared."""
    global _stage
    if own_process:
        _asked.clear()
    if own_process or _stage != OFF:
        _stage = RUNS


def ends_with_run() -> bool:
    """Return True if this process ends when its run has ended (not in a notebook or a test)."""
    return _stage != OFF


def asked() -> str:
    """Return the name of the first stop signal that this module's handler received, or ""."""
    return _asked[0] if _asked else ""


def leave_if_asked() -> None:
    """Exit with status 75 (130 after Ctrl-C) if a stop signal was noted."""
    if _asked:
        _say(f"{asked()}: stopped before the run began\n")
        raise SystemExit(PREEMPTED)


def note_only(number: int, frame: Any) -> None:
    """Handle a signal after a run: its outcome and exit status are final, but a later run in this process gets the
    signal."""
    leave_hung_up_terminal()
    _asked.append(signal.Signals(number).name)


def ignore_signals() -> None:
    """Ignore stop signals, because the exit status is final. Python removes handlers before a process has ended, but
    ignored signals stay ignored."""
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)


def _note(number: int, frame: Any) -> None:
    again = bool(_asked)
    note_only(number, frame)
    if again and _stage == IMPORTS:  # an exception would be raised within an import
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
    """Ctrl-C. If it is not caught, the exit status is 130 and no traceback is printed. If Python discards it,
    keep_interrupts of h5rows installs the handler again, and sends Ctrl-C again."""

    handler = staticmethod(_interrupt)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())


def open_standard_streams() -> None:
    """Open closed streams (2>&-) as /dev/null, otherwise the next opened file would get their number and the output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free number, which is this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - stays open


def leave_hung_up_terminal() -> None:
    """Redirect output of a closed terminal (a broken ssh connection) to /dev/null, because writing to it would
    raise."""
    import termios

    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)
