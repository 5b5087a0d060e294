"""Signals that ask a process to stop: which, holding them back, handling them. Imports no torch."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits import early_signals

STOP_SIGNALS = (signal.SIGINT, *early_signals.SIGNALS)  # the most urgent first
LIKELY_CAUSES: dict[int, str] = {  # why a process was killed by one that nobody asked for, as the end of a sentence
    signal.SIGKILL: " (the kernel does that when memory runs out: see dmesg; "
    "docs/troubleshooting.md#killed-by-sigkill)",
    signal.SIGBUS: " (a data file was cut short while it was read, or the shared memory of /dev/shm is full: see "
    "docs/troubleshooting.md#killed-by-sigbus)",
}
SAME_SIGNAL_S = 0.5  # a terminal and the parent send one Ctrl-C twice


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold stop signals back until the block ends; a process forked in it holds them until it unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder that has gone after the block, at whatever moment one Ctrl-C comes. (tempfile.TemporaryDirectory leaves
    the folder if it is interrupted between its mkdir and the next line, or within its removal.)"""
    folder = (parent or Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(8)}"  # known before it is made
    try:
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            with held_signals():  # rmtree is not made to be interrupted
                _remove(folder)
    finally:
        _remove(folder)  # where a Ctrl-C came before the first removal began


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def handling_signals(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Install `handle` for the stop signals for the length of the block.

    Behind it the former handlers are back; in a process that ends with its run signals are only noted, up to its end:
    what the run's end is has been decided in the block.
    """

    def handler(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            early_signals.leave_hung_up_terminal()
        handle(number, frame)

    before = {number: signal.signal(number, handler) for number in heeded_signals()}
    try:
        yield
    finally:
        with held_signals():  # all at once, or `handle` could raise between two
            for number, former in before.items():
                signal.signal(number, early_signals.note_only if early_signals.ends_with_run() else former)


def heeded_signals() -> list[signal.Signals]:
    """The stop signals; without SIGHUP where it is ignored already (nohup)."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
