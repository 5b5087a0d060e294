"""Machines unlike the one that the tests run on: fewer cores than they seem to have, more, or busy ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from samebits.data import EvalPlan
from samebits.data.loading.choose import kind_of
from samebits.device import threads
from samebits.host import available_memory, cpu as cores
from samebits.host.memory import memory

V2 = "26 1 0:24 {root} {mount} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def process(tmp_path: Path, mounts: str, groups: str, limits: dict[str, str], root: str = "/") -> Path:
    """Return a /proc/self of a process whose groups and their limits are these."""
    proc, mount = tmp_path / "proc/self", tmp_path / "cgroup"
    proc.mkdir(parents=True)
    mount.mkdir()
    (proc / "cgroup").write_text(groups)
    mounts = mounts.format(root=root, mount=str(mount).replace(" ", r"\040"))
    (proc / "mountinfo").write_bytes(os.fsencode(mounts))
    for name, text in limits.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return proc


def machine(tmp_path: Path, mounts: str, groups: str, limits: dict[str, str], root: str = "/") -> float | None:
    """What cgroup_cores() reads where the groups of a process and their limits are these."""
    cores.cgroup_cores.cache_clear()
    try:
        return cores.cgroup_cores(process(tmp_path, mounts, groups, limits, root))
    finally:
        cores.cgroup_cores.cache_clear()


@pytest.mark.parametrize(
    ("mounts", "groups", "root", "limits", "granted"),
    [
        (V2, "0::/\n", "/", {"cpu.max": "250000 100000\n"}, 2.5),  # a container that sees its own group as the root
        (f"31 23 8:1 / /media/caf\udce9 rw - ext4 /dev/sda1 rw\n{V2}", "0::/\n", "/", {"cpu.max": "9 2\n"}, 4.5),
        (V2, "0::/\n", "/", {}, None),  # the root of a host has no such file
        (V2, "0::/a/b\n", "/", {"a/b/cpu.max": "max 100000\n"}, None),
        (V2, "0::/a/b\n", "/", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "150000 50000\n"}, 3.0),  # the least
        (V2, "0::/../..\n", "/", {"cpu.max": "100000 100000\n"}, 1.0),  # the group lies outside of what can be seen
        (
            V1,
            "3:memory:/m\n4:cpu,cpuacct:/a\n",
            "/",
            {"a/cpu.cfs_quota_us": "50000", "a/cpu.cfs_period_us": "25000"},
            2,
        ),
        (V1, "4:cpu,cpuacct:/a\n", "/", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, None),
        (  # a container without a namespace of groups: the path is the host's, the mount the container's own
            V1,
            "4:cpu,cpuacct:/docker/1f\n",
            "/docker/1f",
            {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
            3,
        ),
    ],
)
def test_cpu_limits_of_containers(
    tmp_path: Path, mounts: str, groups: str, root: str, limits: dict[str, str], granted: float | None
) -> None:
    assert machine(tmp_path, mounts, groups, limits, root) == granted


GB = 10**9
MEMINFO = "MemTotal: 64000000 kB\nMemFree: 90000 kB\nMemAvailable: 40000000 kB\nCached: 39000000 kB\n"
V1_MEMORY = V1.replace("cpu,cpuacct", "memory")


@pytest.mark.parametrize(
    ("mounts", "groups", "limits", "left"),
    [
        (V2, "0::/\n", {}, 40.96 * GB),  # not the 0.09 GB that are free: the page cache gives way
        (V2, "0::/a\n", {"a/memory.max": "max", "a/memory.current": "7", "a/memory.stat": ""}, 40.96 * GB),
        (
            V2,
            "0::/a\n",
            {  # 9 of the 10 GB are in use, 8 of them pages of files
                "a/memory.max": f"{10 * GB}\n",
                "a/memory.current": f"{9 * GB}\n",
                "a/memory.stat": f"anon {GB}\nfile {8 * GB}\ninactive_file {6 * GB}\nactive_file {2 * GB}\n",
            },
            9 * GB,
        ),
        (
            V2,
            "0::/a/b\n",
            {"a/memory.max": f"{5 * GB}", "a/memory.current": f"{4 * GB}", "a/memory.stat": "anon 4000000000\n"},
            GB,  # the limit of the group above
        ),
        (
            V1_MEMORY,
            "4:memory:/a\n",
            {
                "a/memory.limit_in_bytes": f"{10 * GB}",
                "a/memory.usage_in_bytes": f"{9 * GB}",
                "a/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * GB}\ntotal_active_file {GB}\n",
            },
            5 * GB,
        ),
        (V2, "0::/a\n", {"a/memory.max": "5", "a/memory.current": "9", "a/memory.stat": "anon 9\n"}, 0),
    ],
    ids=["host", "no limit", "a full page cache", "a level above", "version 1", "nothing"],
)
def test_memory_is_what_is_available_within_the_limits_of_containers(
    tmp_path: Path, mounts: str, groups: str, limits: dict[str, str], left: float
) -> None:
    proc = process(tmp_path, mounts, groups, limits).parent
    (proc / "meminfo").write_text(MEMINFO)
    assert available_memory(proc) == left


def test_memory_of_a_system_that_knows_the_whole_alone(tmp_path: Path) -> None:
    whole = memory()
    assert whole
    assert available_memory(tmp_path) == whole // 2


def test_what_is_free_in_a_full_page_cache_decides_no_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The free pages are the kernel's business: it keeps as few as it can."""
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_AVPHYS_PAGES" else real(name))
    data, cpu = Mapped(), torch.device("cpu")
    assert kind_of(data, EvalPlan(len(data), 8, 0, 1), cpu, "auto")[0] == "device"
    monkeypatch.setattr("samebits.device.memory.available_memory", lambda: 10 * data.nbytes - 10)
    assert kind_of(data, EvalPlan(len(data), 8, 0, 1), cpu, "auto")[0] == "threads"


class Mapped:
    """A batch data set of 1 MB."""

    spec: ClassVar = {"x": ((1024,), torch.uint8)}
    nbytes = 1 << 20

    def __len__(self) -> int:
        return 1024

    def gather(self, rows: Any, out: Any = None) -> Any:
        raise NotImplementedError


def test_cores_and_threads_are_the_least_of_what_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LAB_CORES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    assert (cores.cores(), cores.threads_each(), cores.threads_each(4), cores.threads_each(32)) == (16, 16, 4, 1)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 6.5)
    assert (cores.cores(), cores.cores_each(2)) == (6, 3)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 0.5)
    assert cores.cores() == 1
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    monkeypatch.setenv("LAB_CORES", "8")
    assert cores.cores() == 8
    for text, count in (("2", 2), ("4,2", 4), (" 3 , 1", 3), ("64", 8), ("", 8), ("many", 8), ("0", 8), ("-2", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert cores.threads_each() == count, text
    assert cores.cores() == 8, "OMP_NUM_THREADS is about threads of one process: a pool's other cores stay"
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.cores() == 1


def decided(
    asked: int | str = "auto", device: str = "cpu", deterministic: bool = False, ranks: int = 1, flop: float = 1e12
) -> tuple[int, str]:
    found = threads.threads_for(threads.decide_threads(asked, device, deterministic, ranks), flop)
    return found.count, found.why


def test_threads_follow_from_what_is_asked_the_cores_and_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert decided(5) == (5, "hardware.num_threads")
    assert (
        decided() == decided(device="cuda") == decided(deterministic=True) == decided(flop=1) == (3, "OMP_NUM_THREADS")
    )
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert decided() == (8, "a rank's 8 cores")
    assert decided(ranks=2) == (4, "a rank's 4 cores")
    assert decided(flop=3.3e7) == (1, "a small step, about 33 MFLOP")
    assert decided(deterministic=True) == (1, "hardware.deterministic")
    assert decided(device="cuda", ranks=2, flop=1) == (4, "8 cores, 2 ranks")
    assert decided(ranks=8) == (1, "8 cores, 8 ranks")
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 6.5)
    assert decided() == (6, "a rank's 6 cores")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert decided() == (4, "a rank's 4 cores")


@pytest.mark.parametrize(
    ("affinity", "task", "ranks", "each"),
    [
        (64, {"SLURM_STEP_NUM_TASKS": "8"}, 4, 8),  # srun -n8 -c8 on two nodes, where nothing binds a task
        (8, {"SLURM_STEP_NUM_TASKS": "8"}, 4, 8),  # the same, bound
        (32, {}, 4, 8),  # ranks of the plain command, in the script of sbatch
        (32, {"SLURM_CPUS_PER_TASK": "32", "SLURM_STEP_NUM_TASKS": "2"}, 4, 8),  # a task on each node, of 4 ranks
        (32, {"LAB_CORES": "16"}, 2, 8),  # a job of a pool, of two ranks
    ],
)
def test_slurm_grants_cores(
    affinity: int, task: dict[str, str], ranks: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    job = {"SLURM_CPUS_ON_NODE": "32", "SLURM_CPUS_PER_TASK": "8", "SLURM_PROCID": "0"}
    for name, text in (job | task).items():
        monkeypatch.setenv(name, text)
    assert (cores.cores_each(ranks), decided(ranks=ranks)[0]) == (each, each)
    monkeypatch.delenv("SLURM_PROCID")
    monkeypatch.delenv("LAB_CORES", raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert (cores.cores_each(1), cores.cores_each(2)) == (8, 4), "runs of their own, one in each task"


def test_the_work_of_a_step_is_told_from_shapes() -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    assert threads.rough_flop([dense], (1, 8, 8), 32) == 6 * 32 * 640
    image = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Flatten(), nn.Linear(7, 10, bias=False))
    assert threads.rough_flop([image], (3, 16, 16), 2) == 6 * 2 * (135 * 16 + 70)
    words = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    assert threads.rough_flop([words, nn.Linear(2, 2, bias=False)], (100,), 2) == 6 * 2 * 100 * (36 + 36 + 4)
    with torch.device("meta"):
        assert threads.rough_flop([nn.Linear(4, 4, bias=False)], (), 1) == 6 * 16, "a model that has no memory yet"
