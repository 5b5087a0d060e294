"""How many cores there are to use."""

from __future__ import annotations

import os

CORES_LIMIT = "LAB_CORES"  # what a pool leaves to each of its jobs


def cores() -> int:
    """Cores that this process may use (a scheduler or a pool of jobs may have given fewer than the machine has)."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, int(os.environ.get(CORES_LIMIT, here)))
