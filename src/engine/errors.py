"""Errors that the command line shows as one line, without a traceback."""

import errno
import os
import re

INTERRUPTED = 130  # exit status after Ctrl-C
PREEMPTED = 75  # EX_TEMPFAIL: exit status of a preempted run, which was saved and is to be resumed


class ConfigError(ValueError):
    """A mistake of the user's: one line that names the key or file, the value and the remedy."""


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


_REMEDIES = {
    errno.EMFILE: "this process may open no more files; raise its limit (ulimit -n 4096)",
    errno.ENFILE: "this machine may open no more files",
    errno.ENOMEM: "no memory left; see what else runs here, and the limits (ulimit -v)",
    errno.EACCES: "you may not read it; see its permissions and those of its folders",
    errno.EPERM: "you may not read it; see its permissions and those of its folders",
    errno.EIO: "the disk or the network file system failed; see dmesg, and try again",
    errno.ESTALE: "the network file system has lost it; try again",
    errno.ETIMEDOUT: "the network file system does not answer; try again",
    errno.EINTR: "a signal came; try again",
}


def machine_fault(error: BaseException | None) -> str | None:
    """What the machine failed at, with a remedy, if that is why a file could not be read; None: it may be the file.

    Not a MemoryError: a damaged file may ask for any amount.
    """
    while error is not None:
        number = getattr(error, "errno", None)
        if number is None and (told := re.search(r"errno = (\d+)", str(error))):  # HDF5's
            number = int(told[1])
        if number in _REMEDIES:
            return f"{os.strerror(number)}: {_REMEDIES[number]}"
        error = error.__cause__
    return None


def one_line(error: BaseException) -> str:
    """Returns what to say of an error in one line: "KeyError: 'x'"; of those that are written for that, their text."""
    name, line = type(error).__name__, first_line(error)
    return line if isinstance(error, (ConfigError, RunFailed, DataFailed)) or line == name else f"{name}: {line}"


def first_line(error: BaseException) -> str:
    """Returns the first line of the message without terminal colours; the error's type if there is no message."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
