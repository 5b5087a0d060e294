"""Sweeps: many runs under one name, which can be killed, restarted, extended and reported on.

Given: the sweep's command line (Hydra's multirun) and a launcher. Returned: a directory with a ledger of jobs, each a
run directory, and their report (csv, md, png, html). A launcher has `run_jobs(work: Work)`, or is any launcher of
Hydra's.

Promised: the same command run again trains only what is missing: a job is its overrides, independent of order and
spelling. All jobs are composed, checked and written before the first starts; each is one process, from its directory
alone (`run_job`). Jobs that differ in what was not swept are told apart. A job that dies ends no other.

Raised: ConfigError for the whole sweep before it starts; RunFailed, with the
count of failed jobs, at its end.

    identity, ledger, plan        what a job is; the sweep's directory; the command line -> jobs
    difference, progress          a job's config from that of the first; counts of long loops
    drive, screen                 due jobs -> launcher -> table -> exit status
    launching                     what the launchers share: ends of jobs, signals
    pool, lease, threads          launcher: several jobs at once on this machine
    slurm, ray_cluster            launchers: each job a batch job of SLURM, a task of Ray
    job, job_process, preflight   one job; building each and timing its steps before the start
    search/                       Optuna asks and tells; pruning
    report/, wandb_sync           reports of any runs; uploading runs and sweeps to W&B
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.pages import lazy

if TYPE_CHECKING:
    from engine.sweeps.drive import Work, run_sweep, sweep
    from engine.sweeps.job import run_job
    from engine.sweeps.lease import Leases
    from engine.sweeps.ledger import Ledger
    from engine.sweeps.options import MonitorConfig, PoolConfig, RayConfig, SlurmConfig, SweepConfig
    from engine.sweeps.plan import Composer
    from engine.sweeps.pool import run_in_pool
    from engine.sweeps.preflight import Trial
    from engine.sweeps.ray_cluster import run_on_ray
    from engine.sweeps.report import write_study
    from engine.sweeps.report.analyse import best_group, groups
    from engine.sweeps.report.best import best_command, save_best
    from engine.sweeps.report.choice import check_choice
    from engine.sweeps.report.facts import score_text
    from engine.sweeps.report.read import SWEEP, Objective, runs_below
    from engine.sweeps.report.study import read_study
    from engine.sweeps.report.table import Ask
    from engine.sweeps.search.drive import run_search
    from engine.sweeps.search.pruning import Pruning
    from engine.sweeps.slurm import run_on_slurm
    from engine.sweeps.wandb_sync import upload_run, upload_summary, write_offline
else:
    __getattr__ = lazy(__name__, __file__)
