"""Tests of h5rows, in an environment that has this package, its extra `test`, and no project."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

import h5rows

os.environ["OMP_NUM_THREADS"] = "1"
# the same examples each time, and no verdict on a machine that pauses
checks = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=checks)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name arguments, also where tests of a project, whose messages name its keys, run in the same process."""
    monkeypatch.setattr(h5rows.ConfigError, "group", "")


@pytest.fixture
def in_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name keys of `data`, as in a program that sets this."""
    monkeypatch.setattr(h5rows.ConfigError, "group", "data.")


@pytest.fixture
def server() -> Iterator[Any]:
    from http_files import serving  # imports NumPy, so after the line about its threads

    with serving() as server:
        yield server


@pytest.hookimpl(tryfirst=True)  # before -m is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """one_quick: all cases but the first are slow; one_quick(3): but every third."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_quick"):
            name = item.nodeid.partition("[")[0]
            if cases[name] % (mark.args[0] if mark.args else sys.maxsize):
                item.add_marker(pytest.mark.slow)
            cases[name] += 1
