"""Print lines for the user, and the progress of long loops over jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
SILENT_S = 1.5  # shorter loops print nothing; counted from the second item, because the first may import a lot
TERMINAL_S, FILE_S = 0.2, 10.0  # seconds between two counts, in a terminal and in a file


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def counted(items: Sequence[T], doing: str) -> Iterator[T]:
    """Yield the items, and print "composing 1,200 of 5,000 jobs" to stderr. doing: the verb, e.g. composing."""
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
