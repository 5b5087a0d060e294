"""How this library was called, for messages that show what to type next. A program built on it sets its own words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def in_python(out: Path | str, paths: Sequence[str], sequences: Sequence[str]) -> str:
    """Return a line of Python that reads a packed file. paths: its datasets. sequences: fields of ids of any length."""
    below: dict[str, list[str]] = {}  # split -> its fields
    for path in paths:
        split, _, name = path.partition("/")
        below.setdefault(split, []).append(name)
    group, names = next(iter(below.items()))
    if "" in names or any(other != names for other in below.values()):  # names with a slash, and no splits
        group, names = "/", list(paths)
    fields = {name: name for name in names}
    return f"read it: h5rows.Dataset({str(out)!r}, {fields}, {group!r})"


def read_in_python(path: str, settings: Mapping[str, Any], task: str) -> str:
    """Return a line of Python that reads a file of another program. settings: its fields, splits and missing values."""
    fields = {key.partition(".")[2]: name for key, name in settings.items() if key.startswith("fields.")}
    missing = f", missing={settings['missing']}" if "missing" in settings else ""
    group = "" if "split_ratio" in settings else ", 'train'"  # otherwise all rows of the root
    return f"h5rows.open({path!r}, {fields}{group}, decode=True, cache_mb=512{missing})"


Training = Callable[[str, Mapping[str, Any], str], str]  # see read_in_python
Reading = Callable[["Path | str", Sequence[str], Sequence[str]], str]  # see in_python


@dataclass
class Program:
    """The words that start this program, the functions that return its example lines, and how it makes batches of rows
    of different length."""

    command: tuple[str, ...] = ("python", "-m", "h5rows")
    reading: Reading = in_python
    training: Training = read_in_python
    varying: str = "a batch is padded with zeros, and NAME_length has the lengths"


calling = Program()


def typed(*words: str) -> str:
    """Return a command of this library as the user types it."""
    return shlex.join([*calling.command, *words])
