"""Time limits for slow or busy machines, and samples of test cases that are similar."""

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
START_S = 0.35  # time of two of these in parallel on two idle cores
_slowdown, _measured_at = 1.0, -1e9
collecting = False  # the plugin sets it

ALL = os.environ.get("TESTS_ALL") == "1"  # before a release: test every case, such as a kill after every write


def sample_of(few: Any, everything: Any) -> Any:
    """Return `few`, or `everything` if the environment has TESTS_ALL=1. For many similar cases."""
    return everything if ALL else few


def slow(*values: Any) -> Any:
    """Return a case of pytest.mark.parametrize that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slowdown() -> float:
    """Return how much slower than on an idle machine Python starts now: at least 1, and never less than before."""
    global _slowdown, _measured_at
    if time.monotonic() - _measured_at > 240:
        began = time.monotonic()
        for process in [subprocess.Popen(START) for _ in range(2)]:
            assert process.wait() == 0
        _measured_at = time.monotonic()
        _slowdown = max(_slowdown, (_measured_at - began) / START_S)
    return _slowdown


def limit(seconds: float) -> float:
    """Return the limit on this machine, in seconds, of work that takes less than `seconds` on an idle machine. Use it
    for every limit.

    It must not be called while tests are collected: pytest's workers would get different limits, and so different
    orders."""
    assert not collecting, "pytest.mark.timeout expects the seconds of an idle machine, without limit(...)"
    return 2 * seconds * slowdown()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> Any:
    """Wait until `condition()` is true, and return its value. process: must not end before."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert process is None or process.poll() is None, process.communicate()
        assert waited < limit(seconds), f"condition is not true within {limit(seconds):.0f} s"
        time.sleep(min(0.005 + waited / 50, 0.05))  # listing all processes takes as long as the shortest of these
    return found


def at_once(work: Callable[[Any], Any], cases: Iterable[Any]) -> list[Any]:
    """Return work(case) for all cases, run in threads. For work that mostly waits."""
    warm.run([sys.executable, "-c", ""])  # start the warm process in this thread
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, cases))
