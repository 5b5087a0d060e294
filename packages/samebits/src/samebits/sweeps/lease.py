"""Which GPUs and how many cores each of several jobs on this machine gets. Does not initialize CUDA."""

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
    """gpus: names as in CUDA_VISIBLE_DEVICES; (): the job uses none. share: fraction of each of these GPUs, 0..1."""

    gpus: tuple[str, ...]
    share: float
    cores: int

    def environment(self) -> dict[str, str]:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return {**limited_to(self.cores), **visible}


class Leases:
    """jobs_at_once: a number, or auto: as many as fit on the GPUs; without GPUs, one per core.
    gpus_per_job: a number of GPUs, a fraction of one (0.5), or auto: as many as the job has ranks.
    num_jobs: of the whole command, ended ones too."""

    def __init__(self, jobs_at_once: int | str, gpus_per_job: float | str, num_jobs: int) -> None:
        self._free = dict.fromkeys(visible_gpus(), 1.0)
        self._per_job = gpus_per_job
        self._running = 0
        if gpus_per_job != "auto" and 1 < float(gpus_per_job) != int(gpus_per_job):
            raise ConfigError(f"hydra.launcher.gpus_per_job={gpus_per_job}: a part of one GPU, or whole ones")
        if jobs_at_once == "auto":
            each = 1.0 if gpus_per_job == "auto" else float(gpus_per_job) or 1.0
            jobs_at_once = max(1, int(len(self._free) / each + 1e-9)) if self._free else cores()
        self.at_once = max(1, min(int(jobs_at_once), num_jobs))

    def take(self, project: Project, directory: Path) -> Lease | None:
        """The lease for the job of this run directory; None: it has to wait. ConfigError: it would wait forever."""
        if self._running == self.at_once:
            return None
        wanted = self._wanted(project, directory)
        count, share = (int(wanted), 1.0) if wanted >= 1 else (1, wanted) if wanted else (0, 0.0)
        if count > len(self._free):
            raise ConfigError(
                f"{directory.name}: needs {count} GPUs, {len(self._free)} can be seen - hydra.launcher.gpus_per_job"
            )
        # the GPU with the largest free share first: jobs that share GPUs are spread over them
        ordered = sorted(self._free, key=lambda gpu: -self._free[gpu])
        fitting = [gpu for gpu in ordered if self._free[gpu] >= share - 1e-9]
        if len(fitting) < count:
            return None
        self._running += 1
        for gpu in fitting[:count]:
            self._free[gpu] -= share
        return Lease(tuple(fitting[:count]), share, max(1, cores() // self.at_once))

    def give_back(self, lease: Lease) -> None:
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
    """Names of the visible GPUs, as in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(count_gpus())]
