"""Errors that the command line prints as one line, without a traceback."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import TypeVar

T = TypeVar("T", bound=type)

INTERRUPTED = 130  # exit status after Ctrl-C
MISTAKE = 2  # exit status after a mistake in the configuration
PREEMPTED = 75  # EX_TEMPFAIL: exit status of a preempted run, which has saved a checkpoint and can be resumed


def translate_arguments(arguments: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """Replace renamed options of a command by their current names, and print a line for each.

    renamed: {--old: --new}.
    """
    found = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if new := renamed.get(option):
            print(f"{option}: was renamed to {new} - please use the new name", file=sys.stderr)
        found.append(f"{new or option}{equals}{value}")
    return found


class ConfigError(ValueError):
    """A mistake of the user: one line that names the key or file, the value and the remedy."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook prints: as in a command, the traceback only if LAB_TRACEBACK=1 is set."""
        if os.environ.get("LAB_TRACEBACK") == "1":
            return "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}"]


class Cancelled(ConfigError):
    """A signal, with which the text begins, came before all processes of the run had connected. Nothing was started."""

    @property
    def status(self) -> int:
        """The exit status: 130 after SIGINT, otherwise 75."""
        return INTERRUPTED if str(self).startswith("SIGINT") else PREEMPTED


class CorruptFileError(ConfigError):
    """A file that a run wrote is damaged: one line that names it."""


class RunFailed(RuntimeError):
    """A run failed and has printed its traceback: exit status 1. The text, if any, is an additional line."""


class DirectoryLockedError(ConfigError):
    """Another process is running in this directory."""


class OutOfMemory(RunFailed):
    """Memory was full: one line that names the key to change. A restart may succeed (fragmentation, another
    process)."""


class RankLost(RunFailed):
    """A rank was killed, died or hung. This is not an error of the run's code, so a restart may succeed."""


class DataFailed(RuntimeError):
    """The code of a data set raised, exited or was killed: one line that names the data set, the rows and the split.
    Its cause has the traceback. short: the last lines of it in the data set's own code, also from another process."""

    short = ""


@contextmanager
def mistakes_of(kind: type[Exception]) -> Iterator[None]:
    """Convert errors of `kind` within this block to ConfigError with the same text.

    kind: the class that a library raises for mistakes of its user, e.g. h5rows.ConfigError, because samebits does not
    import that library here.
    """
    try:
        yield
    except kind as error:
        raise ConfigError(str(error)) from error


def with_mistakes_of(kind: type[Exception]) -> Callable[[T], T]:
    """Return a class decorator that runs each public method in a block of `mistakes_of(kind)`: methods of the class
    itself and methods inherited from the library of `kind`."""
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
_VENDORED = _HOME.parents[1]  # packages/ with the other libraries, if this file is in packages/samebits/src
_OURS = [_VENDORED] if _VENDORED.name == "packages" else [_HOME / "samebits", _HOME / "hydra_plugins"]
_FRAMES_SHOWN = 3
_LIBRARIES = (
    "site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<frozen ", "<string>",
    *(f"{folder}/" for folder in _OURS),
)  # fmt: skip


def users_frames(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames outside of Python's, installed and this project's libraries, innermost last."""
    return [frame for frame in frames if not any(part in frame.filename for part in _LIBRARIES)]


def users_traceback(error: BaseException) -> str:
    """Return the innermost frames of user code, and the error, as a traceback shows them; "" without such frames."""
    frames = users_frames(traceback.extract_tb(error.__traceback__))[-_FRAMES_SHOWN:]
    return "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)]) if frames else ""


def in_users_code(error: BaseException, shown: Callable[[Path], str]) -> str | None:
    """Return one line for an error that was raised through the user's code: key, error, file and line, and the
    arguments, if they are in error.key and error.given. Return None if no frame is in the user's code. shown: formats a
    file's path."""
    frames = users_frames(traceback.extract_tb(error.__traceback__))
    if not frames:
        return None
    head, given = getattr(error, "key", ""), getattr(error, "given", "")
    place = f"{shown(Path(frames[-1].filename))}, line {frames[-1].lineno}"
    return f"{head and f'{head}: '}{one_line(error)} ({place}){given and f'; {given}'}"


_PIDS = "raise the limit on processes and threads (ulimit -u, or pids of the container)"
_LIMITS = {  # last words of errors at a limit of the system, and their remedies
    "can't start new thread": _PIDS,
    "Resource temporarily unavailable": f"if no process could be started, {_PIDS}",  # or a file is locked
    "Too many open files(: '.*')?": "raise the limit on open files (ulimit -n)",
}


def one_line(error: BaseException) -> str:
    """Return an error as one line: "KeyError: 'x'", or only the text of ConfigError, RunFailed and DataFailed.

    The remedy follows if the error is about a limit of the system."""
    name, line = type(error).__name__, first_line(error)
    if isinstance(error, (ConfigError, RunFailed, DataFailed)) or line == name:
        return line
    remedy = next((f": {remedy}" for words, remedy in _LIMITS.items() if re.search(f"({words})$", line)), "")
    return f"{name}: {line}{remedy}"


def file_error(error: ConfigError | OSError) -> str:
    """Return one line for an error of a file: "path: Permission denied" instead of Python's "[Errno 13] ..."."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# control characters, characters that change the text direction, surrogates; not newline or tab
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PROGRESS = re.compile(r"\r?(\n|\x1b\[[AK])*")  # progress bars return to the start of the line


def visible(text: str) -> str:
    """Return the text with control characters escaped and without colors."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), _COLOUR.sub("", text))


def plain_output() -> None:
    """Make everything that this process prints `visible`, because it may contain untrusted text of a file or a config.

    A leading "\\r" still returns to the start of the line. Characters that the terminal cannot display, e.g. with
    LC_ALL=C, are printed as \\u6a21.
    """

    def cleaned(write: Callable[[str], int]) -> Callable[[str], int]:
        def plain(text: str) -> int:
            start = text[:1] if text[:1] == "\r" else ""
            return write(text if _PROGRESS.fullmatch(text) else start + visible(text[len(start) :]))

        plain.visible = True  # type: ignore[attr-defined]
        return plain

    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not hasattr(stream.write, "visible"):
            if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
                stream.reconfigure(errors="backslashreplace")
            stream.write = cleaned(stream.write)  # type: ignore[method-assign]


def first_line(error: BaseException) -> str:
    """Return the first line of the message without terminal colors; the error's type if there is no message."""
    lines = _COLOUR.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
