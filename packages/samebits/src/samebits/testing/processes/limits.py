"""How long a test may wait on a machine that is slow or busy, and how much of what is alike it tries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samebits.testing.processes import warm

START = [sys.executable, "-c", "import hydra, asyncio, unittest.mock"]
START_S = 0.35  # two of these at once, on two cores that do nothing else
_slowdown, _measured_at = 1.0, -1e9
collecting = False  # the plugin sets it

ALL = os.environ.get("TESTS_ALL") == "1"  # before a release: every write that a kill may follow, every fork whole


def sample_of(few: Any, everything: Any) -> Any:
    """Return `few`, or `everything` if the environment has TESTS_ALL=1: of much that is alike a sample is tried."""
    return everything if ALL else few


def slow(*values: Any) -> Any:
    """Return a case of pytest.mark.parametrize that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slowdown() -> float:
    """Return how many times longer than on a quiet machine a start takes here and now: at least 1, never less than
    before."""
    global _slowdown, _measured_at
    if time.monotonic() - _measured_at > 240:
        began = time.monotonic()
        for process in [subprocess.Popen(START) for _ in range(2)]:
            assert process.wait() == 0
        _measured_at = time.monotonic()
        _slowdown = max(_slowdown, (_measured_at - began) / START_S)
    return _slowdown


def limit(seconds: float) -> float:
    """Return how many seconds must be enough here for what takes less than `seconds` where nothing else runs. Write no
    limit without it.

    Not of what is collected: pytest's processes would each measure something else, and disagree on the order of tests.
    """
    assert not collecting, "pytest.mark.timeout takes the seconds of a quiet machine, without limit(...)"
    return 2 * seconds * slowdown()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> Any:
    """Return what `condition` returns as soon as that is true. process: one that must still run until then."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert process is None or process.poll() is None, process.communicate()
        assert waited < limit(seconds), f"not within {limit(seconds):.0f} s"
        time.sleep(min(0.005 + waited / 50, 0.05))  # a look at all processes takes as long as the shortest of these
    return found


def at_once(work: Callable[[Any], Any], cases: Iterable[Any]) -> list[Any]:
    """Return work(case) of each, computed in threads: for what waits more than it computes."""
    warm.run([sys.executable, "-c", ""])  # the warm process is started by this thread
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, cases))
