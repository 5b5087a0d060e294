"""Shared by the tests of h5rows, which need nothing of a project: limits, and a part of what is alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).resolve().parents[1]  # packages/h5rows
ALL = os.environ.get("TESTS_ALL") == "1"  # before a release: every write that a kill may follow, every file generated


def sample_of(few: Any, everything: Any) -> Any:
    """Return `few`, or `everything` if the environment has TESTS_ALL=1."""
    return everything if ALL else few


def slow(*values: Any) -> Any:
    """Return a case of pytest.mark.parametrize that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def limit(seconds: float) -> float:
    """Return a limit for what takes less than `seconds` on a quiet machine. It ends what hangs, and no slow machine."""
    return 10 * seconds


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return what `condition` returns as soon as that is true."""
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < limit(seconds), f"not within {limit(seconds):.0f} s"
        time.sleep(0.01)
    return found


def run_python(*arguments: str, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` with the modules that this process finds, and return what it printed."""
    options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options.get("env", {})}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=limit(seconds), **options
    )


def assert_equal(batch: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit. A field is a tensor, or a list of tensors or texts."""
    assert batch.keys() == other.keys()
    for name, value in batch.items():
        pairs = [*zip(value, other[name], strict=True)] if isinstance(value, list) else [(value, other[name])]
        assert all(one == two if isinstance(one, str) else one.equal(two) for one, two in pairs), name
