"""How this library was called, for messages that show what to type next. A program of another name says its own."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def in_python(out: Path, paths: Sequence[str], sequences: Sequence[str]) -> str:
    """The line of Python that reads a packed file. paths: of its datasets; sequences: names of fields of ids of
    different length."""
    groups = list(dict.fromkeys(path.rpartition("/")[0] or "/" for path in paths))
    fields = {path.rpartition("/")[2]: path.rpartition("/")[2] for path in paths}
    return f"read it: h5rows.Dataset({str(out)!r}, {fields}, {groups[0]!r})"


Reading = Callable[[Path, Sequence[str], Sequence[str]], str]  # as in_python


@dataclass
class Program:
    command: tuple[str, ...] = ("python", "-m", "h5rows")
    reading: Reading = in_python


calling = Program()


def typed(*words: str) -> str:
    """A command of this library's, as the user types it."""
    return shlex.join([*calling.command, *words])
