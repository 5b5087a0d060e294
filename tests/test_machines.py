"""Machines unlike the one that the tests run on: fewer cores than they seem to have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import cores

V2 = "26 1 0:24 {root} {mount} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def machine(tmp_path: Path, mounts: str, groups: str, limits: dict[str, str], root: str = "/") -> float | None:
    """What cgroup_cores() reads where the groups of a process and their limits are these."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    mount.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts.format(root=root, mount=mount))
    for name, text in limits.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    cores.cgroup_cores.cache_clear()
    try:
        return cores.cgroup_cores(proc)
    finally:
        cores.cgroup_cores.cache_clear()


@pytest.mark.parametrize(
    ("mounts", "groups", "root", "limits", "granted"),
    [
        (V2, "0::/\n", "/", {"cpu.max": "250000 100000\n"}, 2.5),  # a container that sees its own group as the root
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
    for text, threads in (("2", 2), ("4,2", 4), (" 3 , 1", 3), ("64", 8), ("", 8), ("many", 8), ("0", 8), ("-2", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert cores.threads_each() == threads, text
    assert cores.cores() == 8, "OMP_NUM_THREADS is about threads of one process: a pool's other cores stay"
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.cores() == 1
