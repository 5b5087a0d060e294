"""Errors that the command line shows as one line, without a traceback."""

from h5rows import ConfigError, first_line

__all__ = ["ConfigError", "first_line"]  # of the library below: one class for all mistakes of users

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


def one_line(error: BaseException) -> str:
    """Returns what to say of an error in one line: "KeyError: 'x'"; of those that are written for that, their text."""
    name, line = type(error).__name__, first_line(error)
    return line if isinstance(error, (ConfigError, RunFailed, DataFailed)) or line == name else f"{name}: {line}"
