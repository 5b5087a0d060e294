"""One job, from its run directory alone. Whoever runs it gives it a process of its own: the pool, SLURM, Ray, or

./run train sweep.job=outputs/<name>/sweeps/<sweep>/<job>
"""

from __future__ import annotations

import sys
from pathlib import Path

from samebits.errors import Cancelled, ConfigError, DirectoryLockedError, RunFailed
from samebits.project import Program
from samebits.runs import holds_run
from samebits.saved import CONFIG, read_config, read_overrides
from samebits.status import read_failure, record_failure
from samebits.sweeps.ledger import ENDED

ELSEWHERE = 73  # EX_CANTCREAT: another process runs this job


def run_job(project: Program, directory: Path) -> int:
    """Run or resume the job in this process (several ranks: in child processes). Returns the exit status: 0, 1 the run
    failed, 2 a ConfigError, 75 preempted, 130 Ctrl-C, ELSEWHERE another process runs it.

    A job that has ended is not run again: 0. The outcome is in the directory's status.json.
    """
    if not holds_run(directory):
        raise ConfigError(f"{directory}: no run directory (it has no {CONFIG})")
    from samebits.process import start  # imports torch

    try:
        cfg, overrides = read_config(project, directory), read_overrides(project, directory)
        start(project, project.read(cfg), directory, overrides, own_process=False, leave=ENDED)
    except DirectoryLockedError:
        return ELSEWHERE
    except Cancelled as error:
        print(error, file=sys.stderr)
        return error.status
    except ConfigError as error:
        if read_failure(directory) is None:  # before the run itself began: more ranks than GPUs
            record_failure(directory, 0, error)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except SystemExit as end:  # preempted
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    return 0
