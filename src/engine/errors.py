"""Errors that the command line shows as one line, without a traceback."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from h5rows import ConfigError
from h5rows.engines import first_line, plain_output, visible

# of the library below: one class for all mistakes of users, one way to print what may be a stranger's text
__all__ = ["ConfigError", "first_line", "plain_output", "visible"]

INTERRUPTED = 130  # exit status after Ctrl-C
MISTAKE = 2  # exit status after a mistake in the configuration
PREEMPTED = 75  # EX_TEMPFAIL: exit status of a preempted run, which was saved and is to be resumed


class Cancelled(ConfigError):
    """A signal, with which the text begins, came before all processes of the run had met: nothing was begun."""

    @property
    def status(self) -> int:
        return INTERRUPTED if str(self).startswith("SIGINT") else PREEMPTED


class Damaged(ConfigError):
    """A file that a run has written cannot be read as it was written: one line that names it."""


class RunFailed(RuntimeError):
    """A run ended in failure and has shown its own traceback: exit status 1. The text, if any, is one more line."""


class Claimed(ConfigError):
    """Another process runs in this directory."""


class OutOfMemory(RunFailed):
    """Memory was full: one line that names the key to change. A restart may succeed (fragments, a neighbour)."""


class RankLost(RunFailed):
    """A rank was killed, died or hung: not an error of the run's own code, so a restart may succeed."""


class DataFailed(RuntimeError):
    """A data set's own code raised, exited or was killed: one line that names the data set, the rows and the split. Its
    cause has the traceback."""


_SOURCE = Path(__file__).resolve().parents[1]
_LIBRARIES = (
    "site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<frozen ", "<string>",
    *(f"{_SOURCE}/{name}/" for name in ("engine", "h5rows", "multirun", "hydra_plugins")),
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
