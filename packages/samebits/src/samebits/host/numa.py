"""NUMA: bind a process to the cores of its GPU's node. Does not import torch.

Memory is allocated on the node of the core that first writes to it, and threads and processes inherit the cores of
their starter. Therefore it is sufficient to bind the main thread before it starts others; loader threads, workers and
page-locked buffers follow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from samebits.host import cpu

SYS = Path("/sys")


def nodes(sys: Path = SYS) -> dict[int, frozenset[int]]:
    """Return {node: its cores}, without nodes that have only memory."""
    found = {}
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            if own := cores_of((folder / "cpulist").read_text()):
                found[int(folder.name.removeprefix("node"))] = own
    return found


def cores_of(text: str) -> frozenset[int]:
    """Parse a list of cores: 0-3,8 -> {0, 1, 2, 3, 8}."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(n for first, _, last in ranges for n in range(int(first), int(last or first) + 1))


def node_of(pci: str, sys: Path = SYS) -> int | None:
    """Return the node of a device (0000:3b:00.0); None if unknown, as in most virtual machines."""
    with suppress(OSError, ValueError):
        node = int((sys / "bus/pci/devices" / pci.lower() / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def bind_to_gpus(pcis: Iterable[str | None], sys: Path = SYS) -> str:
    """Bind this process to the node of its GPUs. Return a line for the log, or "" if nothing was done.

    Do nothing if there is one node, if the GPUs are on several or unknown nodes, or if an affinity is already set
    (taskset, a scheduler, a container).
    """
    own = nodes(sys)
    if len(own) < 2 or not hasattr(os, "sched_setaffinity"):
        return ""
    at = {None if pci is None else node_of(pci, sys) for pci in pcis}
    if len(at) != 1:
        return ""
    node = at.pop()
    if node not in own or os.sched_getaffinity(0) != frozenset().union(*own.values()):
        return ""
    assert node is not None
    cpu.bind(own[node])
    return f"NUMA node {node} ({len(own[node])} cores)"
