"""Sweeps of many runs, which can be killed, resumed and extended; reports; verification of runs.

Input: the command line of a sweep (Hydra's multirun) and a launcher. Output: a directory with a ledger (sweep.json, the
list of the jobs), one run directory per job, and a report (csv, md, png, html). A launcher has a method
`run_jobs(work: Work)`, or is one of Hydra's launchers.

Guarantees: a repeated command trains only the missing jobs, because a job is identified by its overrides, independent
of their order and spelling. All jobs are composed, checked and written before the first one starts. Each job is one
process that needs only its directory (`run_job`). Jobs that differ in keys that were not swept are reported separately.
A job that is killed does not affect the other jobs.

Errors: ConfigError for the sweep before it starts; RunFailed with the number of failed jobs when it ends.

    identity, ledger, plan        the identity of a job; the sweep's directory, jobs and code; the command line -> jobs
    zipped                        keys whose values form pairs (sweep.zip)
    options                       the config group `sweep` and the options of launchers and sweepers
    progress                      progress lines of long loops
    command                       the command that trains
    arguments                     check its arguments on a machine without the data
    drive, screen                 due jobs -> launcher -> table -> exit status
    launching                     shared code of the launchers: ends of jobs, signals
    pool, lease                   launcher: several jobs at once on this machine
    slurm, slurm_arrays           launcher: each job as a batch job of SLURM; their submission
    ray_cluster                   launcher: each job as a task of Ray
    job, job_process              one job; its process
    search/                       hyperparameter search with Optuna, pruning
    report/                       a package of its own: reports of any runs
    verify/                       a package of its own: repeats a run and compares the results
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.arguments import configs_of as configs_of
    from samebits.sweeps.command import leave as leave, train as train
    from samebits.sweeps.drive import Work as Work, run_sweep as run_sweep, sweep as sweep
    from samebits.sweeps.lease import Leases as Leases
    from samebits.sweeps.ledger import Ledger as Ledger
    from samebits.sweeps.options import (
        PoolConfig as PoolConfig,
        RayConfig as RayConfig,
        SearchConfig as SearchConfig,
        SlurmConfig as SlurmConfig,
        SweepConfig as SweepConfig,
    )
    from samebits.sweeps.plan import Composer as Composer
    from samebits.sweeps.pool import run_in_pool as run_in_pool
    from samebits.sweeps.ray_cluster import run_on_ray as run_on_ray
    from samebits.sweeps.search.drive import run_search as run_search
    from samebits.sweeps.search.pruning import Pruning as Pruning
    from samebits.sweeps.slurm import run_on_slurm as run_on_slurm, submit_to_slurm as submit_to_slurm
    from samebits.sweeps.slurm_arrays import check_sbatch_options as check_sbatch_options
else:
    __getattr__ = lazy_getattr(__name__, __file__)
