"""How many cores, and threads, a process may use. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Set
from functools import lru_cache
from pathlib import Path

from samebits.host.cgroups import OWN, levels_of

CORES_LIMIT = "LAB_CORES"  # set by a sweep's pool: the cores of one job
READERS_LIMIT = "H5ROWS_CORES"  # the same for the threads of h5rows, which knows nothing of this project
_before: list[int] = []  # _shared() before `bind`


def cores() -> int:
    """Cores that this process may use: the least of its CPU affinity (a scheduler, taskset), the CPU limit of its
    cgroup (a container), what SLURM has granted and LAB_CORES; at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = cgroup_cores()
    limits = [here, here if granted is None else int(granted), _number("SLURM_CPUS_ON_NODE"), _number(CORES_LIMIT)]
    if (_number("SLURM_STEP_NUM_TASKS") or 1) > 1:  # srun's; sbatch's script has the cores of all its tasks
        limits.append(_number("SLURM_CPUS_PER_TASK"))
    return max(1, min(limit for limit in limits if limit is not None))


def limited_to(num_cores: int) -> dict[str, str]:
    """The environment of a job of so many cores."""
    return {CORES_LIMIT: str(num_cores), READERS_LIMIT: str(num_cores)}


def cores_each(processes: int) -> int:
    """Cores for each of `processes` processes that share this machine, bound to parts of it or not."""
    shared = _before[0] if _before else _shared()
    return max(1, min(cores(), shared // processes))


def _shared() -> int:
    """Cores of all ranks on this machine. A rank that srun has started is bound to its own."""
    of_job = _number("SLURM_CPUS_ON_NODE") if "SLURM_PROCID" in os.environ else None
    return cores() if of_job is None else min(of_job, _number(CORES_LIMIT) or of_job)


def bind(own: Set[int]) -> None:
    """This process, and the threads and processes that it starts from now on, run on these cores only."""
    if not _before:
        _before.append(_shared())
    os.sched_setaffinity(0, own)


def threads_each(processes: int = 1) -> int:
    """Most compute threads for each of `processes` processes: its cores, or OMP_NUM_THREADS if that is less."""
    num_cores = cores_each(processes)
    return min(num_cores, omp_num_threads() or num_cores)


def omp_num_threads() -> int | None:
    """OMP_NUM_THREADS; its first value where it is a list for nested regions (4,2). None: not set, or no number > 0."""
    return _number("OMP_NUM_THREADS")


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}


@lru_cache(maxsize=1)  # called at each read of a file, and a process stays in its cgroup
def cgroup_cores(process: Path = OWN) -> float | None:
    """The cgroup CPU limit in cores (quota / period), the least of all levels; None: no limit is known."""
    limits = [_limit(folder, *_FILES[version]) for version, folder in levels_of("cpu", process)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(folder: Path, *files: str) -> float | None:
    """quota / period, as the files have them one after the other."""
    try:
        quota, period = " ".join((folder / file).read_text() for file in files).split()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
