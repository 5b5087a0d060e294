"""Number of cores and threads that a process may use. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Set
from functools import lru_cache
from pathlib import Path

from samebits.host.cgroups import OWN, levels_of

CORES_LIMIT = "LAB_CORES"  # set by the pool of a sweep: the number of cores of one job
READERS_LIMIT = "H5ROWS_CORES"  # the same for the threads of h5rows, which is independent of this project
_before: list[int] = []  # _shared() before `bind`


def cores() -> int:
    """Return the number of cores that this process may use: the minimum of its CPU affinity (a scheduler, taskset), the
    CPU limit of its cgroup (a container), the cores granted by SLURM, and LAB_CORES; at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = cgroup_cores()
    limits = [here, here if granted is None else int(granted), _number("SLURM_CPUS_ON_NODE"), _number(CORES_LIMIT)]
    if (_number("SLURM_STEP_NUM_TASKS") or 1) > 1:  # set by srun; the script of sbatch has the cores of all tasks
        limits.append(_number("SLURM_CPUS_PER_TASK"))
    return max(1, min(limit for limit in limits if limit is not None))


def limited_to(num_cores: int) -> dict[str, str]:
    """Return the environment variables that limit a job to this number of cores."""
    return {CORES_LIMIT: str(num_cores), READERS_LIMIT: str(num_cores)}


def cores_each(processes: int) -> int:
    """Return the cores for each of `processes` processes that share this machine, whether they are bound to cores or
    not."""
    shared = _before[0] if _before else _shared()
    return max(1, min(cores(), shared // processes))


def _shared() -> int:
    """Return the number of cores of all ranks on this machine. A rank started by srun is bound to its own cores."""
    of_job = _number("SLURM_CPUS_ON_NODE") if "SLURM_PROCID" in os.environ else None
    return cores() if of_job is None else min(of_job, _number(CORES_LIMIT) or of_job)


def bind(own: Set[int]) -> None:
    """Bind this process, and threads and processes that it starts later, to these cores."""
    if not _before:
        _before.append(_shared())
    os.sched_setaffinity(0, own)


def threads_each(processes: int = 1) -> int:
    """Return the maximum number of compute threads per process: its cores, or OMP_NUM_THREADS if that is less."""
    num_cores = cores_each(processes)
    return min(num_cores, omp_num_threads() or num_cores)


def omp_num_threads() -> int | None:
    """Return OMP_NUM_THREADS, or its first value if it is a list for nested regions (4,2). None: not set, or not >
    0."""
    return _number("OMP_NUM_THREADS")


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}


@lru_cache(maxsize=1)  # cached, because each read of a file calls it and a process stays in its cgroup
def cgroup_cores(process: Path = OWN) -> float | None:
    """Return the cgroup CPU limit in cores (quota / period), the minimum over all levels; None if there is no limit."""
    limits = [_limit(folder, *_FILES[version]) for version, folder in levels_of("cpu", process)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(folder: Path, *files: str) -> float | None:
    """Return quota / period, read from the files in this order."""
    try:
        quota, period = " ".join((folder / file).read_text() for file in files).split()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
