"""Many runs: sweeps, which can be killed, restarted, extended and reported on; runs that are started again.

Given: the sweep's command line (Hydra's multirun) and a launcher. Returned: a directory with a ledger of jobs, each a
run directory, and their report (csv, md, png, html). A launcher has `run_jobs(work: Work)`, or is any launcher of
Hydra's.

Promised: the same command run again trains only what is missing: a job is its overrides, independent of order and
spelling. All jobs are composed, checked and written before the first starts; each is one process, from its directory
alone (`run_job`). Jobs that differ in what was not swept are told apart. A job that dies ends no other.

Raised: ConfigError for the whole sweep before it starts; RunFailed, with the
count of failed jobs, at its end.

    identity, ledger, plan        what a job is; the sweep's directory; the command line -> jobs
    progress                      counts of long loops
    command                       the command that trains
    drive, screen                 due jobs -> launcher -> table -> exit status
    launching                     what the launchers share: ends of jobs, signals
    pool, lease                   launcher: several jobs at once on this machine
    slurm, ray_cluster            launchers: each job a batch job of SLURM, a task of Ray
    job, job_process, preflight   one job; building each and timing its steps before the start
    search/                       Optuna asks and tells; pruning
    report/                       a room of its own: reports of any runs
    verify/                       another: a run started again and compared
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.command import leave, train
    from samebits.sweeps.drive import Work, run_sweep, sweep
    from samebits.sweeps.lease import Leases
    from samebits.sweeps.ledger import Ledger
    from samebits.sweeps.options import PoolConfig, RayConfig, SearchConfig, SlurmConfig, SweepConfig
    from samebits.sweeps.plan import Composer
    from samebits.sweeps.pool import run_in_pool
    from samebits.sweeps.preflight import Trial
    from samebits.sweeps.ray_cluster import run_on_ray
    from samebits.sweeps.search.drive import run_search
    from samebits.sweeps.search.pruning import Pruning
    from samebits.sweeps.slurm import run_on_slurm
else:
    __getattr__ = lazy_getattr(__name__, __file__)
