"""Binding to a NUMA node, from trees of /sys as machines have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from samebits.host import cpu, numa

PCI = "0000:3b:00.0"


def tree(root: Path, nodes: dict[int, str], gpus: dict[str, str]) -> Path:
    for node, cores in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for pci, node in gpus.items():
        folder = root / "bus/pci/devices" / pci
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


class Process:
    """A process on a machine of many cores."""

    def __init__(self, cores: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.cores = frozenset(cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(self.cores))
        monkeypatch.setattr(os, "sched_setaffinity", self.bind)
        monkeypatch.setattr(cpu, "_before", [])
        monkeypatch.setattr(cpu, "cgroup_cores", lambda: None)

    def bind(self, pid: int, cores: set[int]) -> None:
        assert pid == 0
        self.cores = frozenset(cores)


TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


def test_a_rank_runs_beside_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(set(range(16)), monkeypatch)
    root = tree(tmp_path, {**TWO, 2: ""}, {PCI: "1", "0000:5e:00.0": "0"})  # a node of memory alone
    shares = {ranks: cpu.cores_each(ranks) for ranks in (2, 4, 8)}
    assert numa.bind_to_gpus([PCI.upper()], root) == "NUMA node 1 (8 cores)"
    assert process.cores == {4, 5, 6, 7, 12, 13, 14, 15}
    # eight ranks still have two cores each: four share a node
    assert {ranks: cpu.cores_each(ranks) for ranks in (2, 4, 8)} == shares == {2: 8, 4: 4, 8: 2}
    assert cpu.cores_each(1) == 8, "a rank alone has what it is bound to"
    assert numa.bind_to_gpus(["0000:5e:00.0"], root) == "", "once"


@pytest.mark.parametrize(
    ("nodes", "gpus", "used", "cores"),
    [
        ({0: "0-15"}, {PCI: "0"}, [PCI], range(16)),  # one node
        (TWO, {PCI: "-1"}, [PCI], range(16)),  # a virtual machine does not say
        (TWO, {PCI: "7"}, [PCI], range(16)),
        (TWO, {}, [PCI], range(16)),
        (TWO, {PCI: "0"}, [None], range(16)),  # torch does not say where the GPU is
        (TWO, {PCI: "0"}, [], range(16)),  # a CPU's run
        (TWO, {PCI: "0", "0000:5e:00.0": "1"}, [PCI, "0000:5e:00.0"], range(16)),  # trainer=dp over both
        (TWO, {PCI: "0"}, [PCI], range(4, 8)),  # taskset, SLURM's --cpu-bind, a container's cpuset
        (TWO, {PCI: "0"}, [PCI], range(15)),
        ({}, {PCI: "0"}, [PCI], range(16)),
    ],
)
def test_where_nothing_is_to_be_done(
    nodes: dict[int, str], gpus: dict[str, str], used: list[str | None], cores: range, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    process = Process(set(cores), monkeypatch)
    assert numa.bind_to_gpus(used, tree(tmp_path, nodes, gpus)) == ""
    assert process.cores == set(cores)


def test_lists_of_cores() -> None:
    assert numa.cores_of("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}
    assert numa.cores_of("\n") == set()
