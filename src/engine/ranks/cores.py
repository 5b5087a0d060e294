"""How many cores, and threads, a process may use. Imports no torch."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

CORES_LIMIT = "LAB_CORES"  # what a pool leaves to each of its jobs


def cores() -> int:
    """Cores that this process may keep busy: of the machine, or fewer by its affinity (a scheduler, taskset), by the
    CPU limit of its control group (a container) or by the pool that runs it."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = cgroup_cores()
    limits = [here, int(os.environ.get(CORES_LIMIT, here)), here if granted is None else int(granted)]
    return max(1, min(limits))


def cores_each(processes: int) -> int:
    """Cores for each of `processes` that run on this machine at once."""
    return max(1, cores() // processes)


def threads_each(processes: int = 1) -> int:
    """The most threads that each of `processes` should compute with: its cores, or fewer by OMP_NUM_THREADS."""
    return threads_of(cores_each(processes))


def threads_of(num_cores: int) -> int:
    """The most threads to compute with on so many cores."""
    return min(num_cores, omp_num_threads() or num_cores)


def omp_num_threads() -> int | None:
    """OMP_NUM_THREADS, of a list for nested regions (4,2) the first; None: not set, or no number of threads."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


@lru_cache(maxsize=1)  # asked for at each read of a file; a process stays in its group
def cgroup_cores(proc: Path = Path("/proc/self")) -> float | None:
    """The CPU time per second that the control groups of this process grant it, the least of all levels; None: no
    limit is known. `proc`: where `cgroup` and `mountinfo` of the process lie."""
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    limits = []
    for mount in mounts:
        root, point, (kind, _, options) = mount[3], Path(mount[4]), mount[mount.index("-") + 1 :][:3]
        for _, controllers, path in groups:
            if (kind, controllers) == ("cgroup2", ""):
                read = _limit_v2
            elif kind == "cgroup" and "cpu" in options.split(",") and "cpu" in controllers.split(","):
                read = _limit_v1
            else:
                continue
            # a container may see the mount of its own group as the root, under the path that the host knows
            inside = os.path.relpath(path, root)
            folder = point if inside.startswith("..") else point / inside
            levels = [folder, *folder.parents][: len(folder.parts) - len(point.parts) + 1]
            limits += [limit for level in levels if (limit := read(level)) is not None]
    return min(limits, default=None)


def _limit_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _limit_v1(folder: Path) -> float | None:
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
