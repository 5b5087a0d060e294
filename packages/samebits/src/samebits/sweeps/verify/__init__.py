"""Recompute a run: start it again from its own config and code, and compare what it wrote bit for bit.

Given: a run directory, finished or stopped, of one rank or several; nothing in it is changed. Returned: a `Verdict`,
which names the first metric, the first tensor of a checkpoint and the first score that differ, by how much, and what
differs in the surroundings (machine, versions, threads, ranks, data files, code).

The second run is the command `src/train.py` in a directory of its own, in a process of its own: from the present files
or, only where that is asked for, from a git worktree of its commit, without or with its uncommitted.diff. Whatever the
code, the present check of the config comes first. It is stopped by process.stop_at_step, which leaves the schedule.

Raised: ConfigError for a run that cannot be started again, or of which nothing can be compared.

    command      prints the verdict
    recompute    the second run      compare    metrics, checkpoints and scores of two run directories
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.verify.command import verify_command
else:
    __getattr__ = lazy_getattr(__name__, __file__)
