"""Verify a run: repeat it with its own config and code, and compare all results bit for bit.

Input: a finished or stopped run directory, of one or several ranks; it is not changed. Output: a `Verdict` with the
first metric, checkpoint tensor and score that differ, the size of the difference, and the differences in the
environment (machine, versions, threads, ranks, data files, code).

The second run is the command `src/train.py` in its own directory and process. It uses the current files or, only on
request, a git worktree of the run's commit, with or without its uncommitted.diff. The config is always checked by the
current code first. process.stop_at_step ends the second run, because it does not change the schedule.

Errors: ConfigError if the run cannot be repeated or nothing can be compared.

    command      prints the verdict
    recompute    the second run
    compare      metrics, checkpoints and scores of two run directories
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.verify.command import verify_command as verify_command
else:
    __getattr__ = lazy_getattr(__name__, __file__)
