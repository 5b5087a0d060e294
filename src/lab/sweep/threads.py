"""How many threads each job computes with. It is decided when a job is written: sums that more threads make differ in
their last bits, so a job must not get more because it happens to run alone, goes on later, or after others failed."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from lab.config import ONE_PROCESS, HardwareConfig, TrainerConfig, typed
from lab.cores import cores_each, threads_of
from lab.errors import ConfigError
from lab.sweep.ledger import Ledger


def cores_per_job(launcher: Any, num_jobs: int, ledger: Ledger) -> int | None:
    """What each job of the sweep may use of this machine. num_jobs: of the command, those that have ended included.

    A sweep that grows keeps its share while that leaves each core to one job. None: the jobs do not run on this machine,
    or the launcher does not say how many at once.
    """
    if not hasattr(launcher, "at_once"):
        return None
    share = cores_each(launcher.at_once(num_jobs))
    return min(share, ledger.cores_per_job or share)


def decide(cfg: DictConfig, num_cores: int | None) -> None:
    """Write the number of threads of each rank in place of hardware.num_threads=auto."""
    if num_cores is None or cfg.hardware.num_threads != "auto":
        return
    ranks = 1
    if cfg.trainer.strategy not in ONE_PROCESS:
        from lab.hardware import count_processes

        hardware, trainer = (
            typed(HardwareConfig, cfg.hardware, "hardware"),
            typed(TrainerConfig, cfg.trainer, "trainer"),
        )
        try:
            ranks = count_processes(hardware, trainer)
        except ConfigError:  # more ranks than GPUs: the job says so when its turn comes
            return
    cfg.hardware.num_threads = threads_of(max(1, num_cores // ranks))
