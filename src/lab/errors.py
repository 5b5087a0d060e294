"""Errors that the command line shows as one line, without a traceback."""

PREEMPTED = 75  # EX_TEMPFAIL, the exit status of what was stopped and saved: to be run again


class ConfigError(ValueError):
    """A mistake of the user's: one line that names the key or file, the value and the remedy."""


class Damaged(ConfigError):
    """A file that a run has written cannot be read as it was written: one line that names it."""


class RunFailed(RuntimeError):
    """A run ended in failure and has shown its own traceback: exit status 1. The text, if any, is one more line."""


class Claimed(ConfigError):
    """Another process runs in this directory."""


class RankLost(RunFailed):
    """A rank was killed, died or hung: nothing that the run itself did, so it may go well another time."""
