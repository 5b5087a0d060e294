"""Stop signals: which they are, blocking them, handling them. Does not import torch."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits import early_signals

STOP_SIGNALS = (signal.SIGINT, *early_signals.SIGNALS)  # most urgent first
LIKELY_CAUSES: dict[int, str] = {  # likely causes of a kill by a signal, as the end of a sentence
    signal.SIGKILL: " (the kernel does that when memory runs out: see dmesg; "
    "docs/troubleshooting.md#killed-by-sigkill)",
    signal.SIGBUS: " (a data file was cut short while it was read, or the shared memory of /dev/shm is full: see "
    "docs/troubleshooting.md#killed-by-sigbus)",
}
SAME_SIGNAL_S = 0.5  # seconds; a terminal and the parent may both deliver one Ctrl-C


@contextmanager
def held_signals() -> Iterator[None]:
    """Block stop signals within the block. A process forked in it keeps them blocked until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder that is removed after the block, even if Ctrl-C, SIGTERM or SIGHUP arrives at any time.

    tempfile.TemporaryDirectory leaves the folder if it is interrupted right after mkdir or during the removal.
    """
    with _leaving_on_signals(), _temporary_folder(prefix, parent) as folder:
        yield folder


class Ended(SystemExit):
    """The end of a command by a signal. If Python discards it, keep_interrupts of h5rows sends the signal again."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = number


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Raise SystemExit within the block for SIGTERM and SIGHUP, if they would otherwise end this process without its
    cleanup."""
    command = os.getpid()

    def leave(number: int, frame: Any) -> None:
        if os.getpid() != command:  # a process that the command has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        early_signals.leave_hung_up_terminal()
        raise Ended(number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():  # only that thread can install handlers
        numbers = []
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _temporary_folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    # the name is known before the folder is created
    folder = (parent or Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(8)}"
    try:
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            with held_signals():  # rmtree must not be interrupted
                _remove(folder)
    finally:
        _remove(folder)  # in case Ctrl-C arrived before the first removal


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def handling_signals(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle stop signals with `handle` within the block.

    After the block the previous handlers are restored. In a process that ends with its run, signals are only noted from
    then on, because the outcome of the run was decided within the block.
    """

    def handler(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            early_signals.leave_hung_up_terminal()
        handle(number, frame)

    before = {number: signal.signal(number, handler) for number in heeded_signals()}
    try:
        yield
    finally:
        # blocked while the handlers are installed, otherwise `handle` could raise between two of them
        with held_signals():
            for number, former in before.items():
                signal.signal(number, early_signals.note_only if early_signals.ends_with_run() else former)


def heeded_signals() -> list[signal.Signals]:
    """Return the stop signals, without SIGHUP if it is ignored (nohup)."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


def how_to_stop() -> str:
    """Return how the user ends this command: by Ctrl-C, or on another machine as ./run remote says (RUN_REMOTE)."""
    remote = os.environ.get("RUN_REMOTE")
    return f"Ctrl-C ends only the display, {remote} stop ends this command" if remote else "Ctrl-C stops"
