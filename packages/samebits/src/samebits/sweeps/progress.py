"""Lines for the user; how far a loop over many jobs is, where that takes longer than one waits without a word."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
SILENT_S = 1.5  # nothing is said of what is done by then, counted from the second item: the first may import much
TERMINAL_S, FILE_S = 0.2, 10.0  # between two counts: in one line of a terminal, in lines of a file


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def counted(items: Sequence[T], doing: str) -> Iterator[T]:
    """Yields the items; "composing 1,200 of 5,000 jobs" on stderr. doing: composing."""
    live, shown, due = sys.stderr.isatty(), False, 0.0
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if number <= 1:
                due = now + SILENT_S
            elif now >= due:
                line = f"{doing} {number:,} of {len(items):,} jobs"
                print(f"\r{line}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)
                due, shown = now + (TERMINAL_S if live else FILE_S), True
            yield item
    finally:
        if live and shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
