"""Assign GPUs and cores to the jobs that run at once on this machine. A job holds them as a lease, which it gives back
when it ends. Does not initialize CUDA."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError
from samebits.host import cores, count_gpus, limited_to
from samebits.project import Project
from samebits.saved import read_config


@dataclass(frozen=True)
class Lease:
    """The GPUs and cores of one job. gpus: names as in CUDA_VISIBLE_DEVICES, () if the job uses none. share: fraction
    of each of these GPUs, 0 to 1."""

    gpus: tuple[str, ...]
    share: float
    cores: int

    def environment(self) -> dict[str, str]:
        """Return the environment variables that limit the job to its GPUs and cores."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return {**limited_to(self.cores), **visible}


class Leases:
    """The free GPUs and cores of this machine.

    jobs_at_once: a number; auto: as many as fit on the GPUs, or one per core without GPUs. gpus_per_job: a number of
    GPUs, a fraction of one (0.5); auto: one per rank of the job. num_jobs: all jobs of the command, including ended
    ones."""

    def __init__(self, jobs_at_once: int | str, gpus_per_job: float | str, num_jobs: int) -> None:
        self._free = dict.fromkeys(visible_gpus(), 1.0)
        self._per_job = gpus_per_job
        self._running = 0
        if gpus_per_job != "auto" and 1 < float(gpus_per_job) != int(gpus_per_job):
            raise ConfigError(f"hydra.launcher.gpus_per_job={gpus_per_job}: must be an integer, or a fraction below 1")
        if jobs_at_once == "auto":
            each = 1.0 if gpus_per_job == "auto" else float(gpus_per_job) or 1.0
            jobs_at_once = max(1, int(len(self._free) / each + 1e-9)) if self._free else cores()
        self.at_once = max(1, min(int(jobs_at_once), num_jobs))

    def take(self, project: Project, directory: Path) -> Lease | None:
        """Return a lease for the job in this run directory, or None if it must wait. Raise ConfigError if it needs more
        GPUs than there are."""
        if self._running == self.at_once:
            return None
        wanted = self._wanted(project, directory)
        count, share = (int(wanted), 1.0) if wanted >= 1 else (1, wanted) if wanted else (0, 0.0)
        if count > len(self._free):
            raise ConfigError(
                f"{directory.name}: needs {count} GPUs, {len(self._free)} are visible - set hydra.launcher.gpus_per_job"
            )
        # the GPU with the largest free share first, so that jobs are spread over the GPUs
        ordered = sorted(self._free, key=lambda gpu: -self._free[gpu])
        fitting = [gpu for gpu in ordered if self._free[gpu] >= share - 1e-9]
        if len(fitting) < count:
            return None
        self._running += 1
        for gpu in fitting[:count]:
            self._free[gpu] -= share
        return Lease(tuple(fitting[:count]), share, max(1, cores() // self.at_once))

    def give_back(self, lease: Lease) -> None:
        """Return a lease when its job has ended."""
        self._running -= 1
        for gpu in lease.gpus:
            self._free[gpu] += lease.share

    def _wanted(self, project: Project, directory: Path) -> float:
        if not self._free:
            return 0.0
        cfg: Any = read_config(project, directory)
        if cfg.hardware.device in ("cpu", "mps"):
            return 0.0
        if self._per_job != "auto":
            return float(self._per_job)
        if cfg.trainer.strategy == "single":
            return 1.0
        ranks = cfg.hardware.num_procs
        return float(len(self._free) if ranks == "auto" else ranks)


def visible_gpus() -> list[str]:
    """Return the names of the visible GPUs, as in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(count_gpus())]
