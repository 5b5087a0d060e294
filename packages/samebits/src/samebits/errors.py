"""Errors that the command line shows as one line, without a traceback."""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import TypeVar

T = TypeVar("T", bound=type)

INTERRUPTED = 130  # exit status after Ctrl-C
MISTAKE = 2  # exit status after a mistake in the configuration
PREEMPTED = 75  # EX_TEMPFAIL: exit status of a preempted run, which was saved and is to be resumed


class ConfigError(ValueError):
    """A mistake of the user's: one line that names the key or file, the value and the remedy."""


class Cancelled(ConfigError):
    """A signal, with which the text begins, came before all processes of the run had met: nothing was begun."""

    @property
    def status(self) -> int:
        return INTERRUPTED if str(self).startswith("SIGINT") else PREEMPTED


class CorruptFileError(ConfigError):
    """A file that a run has written cannot be read as it was written: one line that names it."""


class RunFailed(RuntimeError):
    """A run ended in failure and has shown its own traceback: exit status 1. The text, if any, is one more line."""


class DirectoryLockedError(ConfigError):
    """Another process runs in this directory."""


class OutOfMemory(RunFailed):
    """Memory was full: one line that names the key to change. A restart may succeed (fragments, a neighbour)."""


class RankLost(RunFailed):
    """A rank was killed, died or hung: not an error of the run's own code, so a restart may succeed."""


class DataFailed(RuntimeError):
    """A data set's own code raised, exited or was killed: one line that names the data set, the rows and the split. Its
    cause has the traceback."""


@contextmanager
def mistakes_of(kind: type[Exception]) -> Iterator[None]:
    """In this block an error of `kind` becomes a ConfigError with the same line. kind: what a library raises for
    mistakes of its user, such as h5rows.ConfigError; the engine knows no class but its own."""
    try:
        yield
    except kind as error:
        raise ConfigError(str(error)) from error


def with_mistakes_of(kind: type[Exception]) -> Callable[[T], T]:
    """Return a decorator of classes that puts each public method in a block of `mistakes_of(kind)`: those of the class
    itself and those that it inherits from the library of `kind`."""
    library = kind.__module__.partition(".")[0]

    def translated(method: FunctionType) -> Callable[..., object]:
        @wraps(method)
        def call(*args: object, **named: object) -> object:
            with mistakes_of(kind):
                return method(*args, **named)

        return call

    def decorate(cls: T) -> T:
        for base in reversed(cls.__mro__):
            if base is cls or base.__module__.partition(".")[0] == library:
                for name, value in [*vars(base).items()]:
                    public = not name.startswith("_") or name.endswith("__")
                    if public and isinstance(value, FunctionType):
                        setattr(cls, name, translated(value))
                    elif public and isinstance(value, property) and isinstance(value.fget, FunctionType):
                        setattr(cls, name, property(translated(value.fget), doc=value.__doc__))
        return cls

    return decorate


_HOME = Path(__file__).resolve().parents[1]
_VENDORED = _HOME.parents[1]  # packages/, with the other libraries, where this one lies in packages/samebits/src
_OURS = [_VENDORED] if _VENDORED.name == "packages" else [_HOME / "samebits", _HOME / "hydra_plugins"]
_LIBRARIES = (
    "site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<frozen ", "<string>",
    *(f"{folder}/" for folder in _OURS),
)  # fmt: skip


def users_frames(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Those outside of Python's, installed and this project's libraries, innermost last."""
    return [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)]


def in_users_code(error: BaseException, shown: Callable[[Path], str]) -> str | None:
    """One line of an error that came through the user's code: its key, what was raised, file and line, what was given,
    as far as it is noted in error.key and error.given; None: it did not. shown: a file's path as it is shown."""
    frames = users_frames(traceback.extract_tb(error.__traceback__))
    if not frames:
        return None
    head, given = getattr(error, "key", ""), getattr(error, "given", "")
    place = f"{shown(Path(frames[-1].filename))}, line {frames[-1].lineno}"
    return f"{head and f'{head}: '}{one_line(error)} ({place}){given and f'; {given}'}"


def one_line(error: BaseException) -> str:
    """Returns what to say of an error in one line: "KeyError: 'x'"; of those that are written for that, their text."""
    name, line = type(error).__name__, first_line(error)
    return line if isinstance(error, (ConfigError, RunFailed, DataFailed)) or line == name else f"{name}: {line}"


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# what steers a terminal, turns the order of what follows, or cannot be encoded; not a newline or a tab
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PROGRESS = re.compile(r"\r?(\n|\x1b\[[AK])*")  # as progress bars go back to the beginning of their line


def visible(text: str) -> str:
    """Return the text with what would steer a terminal as its escape, without colours."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), _COLOUR.sub("", text))


def plain_output() -> None:
    """Make all that this process prints from here on `visible`: it may be a stranger's text, of a file or a config.
    What is written with "\r" at its beginning still goes to the beginning of the line. What the terminal cannot show,
    as one of LC_ALL=C, is written as \\u6a21."""

    def cleaned(write: Callable[[str], int]) -> Callable[[str], int]:
        def plain(text: str) -> int:
            start = text[:1] if text[:1] == "\r" else ""
            return write(text if _PROGRESS.fullmatch(text) else start + visible(text[len(start) :]))

        return plain

    for stream in (sys.stdout, sys.stderr):
        if stream is not None and "write" not in vars(stream):
            if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
                stream.reconfigure(errors="backslashreplace")
            stream.write = cleaned(stream.write)  # type: ignore[method-assign]


def first_line(error: BaseException) -> str:
    """Return the first line of the message without terminal colours; the error's type if there is no message."""
    lines = _COLOUR.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
