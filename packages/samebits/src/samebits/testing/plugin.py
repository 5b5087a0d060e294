"""Hooks and fixtures for pytest. Load them by `pytest_plugins = ["samebits.testing.plugin"]` in conftest.py.

Markers: slow, one_quick, gpu (see pytest_collection_modifyitems). Fixtures: use, train_command.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from samebits.testing.processes import called, limit, limits, module, processes_with, program, warm

# one thread: runs are forked from this process, and a forked OpenMP pool would hang
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["WANDB_MODE"] = "offline"
# otherwise each worker, and each Python that a test starts, compiles all imported modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# nohup, and shells that start this in the background, ignore some signals, and all runs would inherit that
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# with 700 objects per collection a seventh of the tests' time is garbage collection, most of it of configs
gc.set_threshold(5000, 10, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Set up torch and Hypothesis in a process that runs tests. The process that starts the workers imports neither,
    which takes seconds in which the workers would wait."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    import hypothesis
    import torch

    from samebits.testing.devices import hide_gpus

    hide_gpus()
    warm.BEGAN.update(os.environ)
    torch.set_num_threads(1)
    # the same examples each time, and no failures because a machine is slow
    checks = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
    hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=checks)
    hypothesis.settings.load_profile("suite")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Exempt all objects from garbage collection: pytest and Python would search a million of them, for seconds."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Return the number of workers: at most 4, because each starts runs of several processes. With slow tests 3 for
    every 2 of them, because many slow tests wait for a server, a scheduler or a timeout."""
    workers = min((yield), 4)
    return workers if "not slow" in config.option.markexpr else 3 * workers // 2


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Apply the markers. gpu, gpu(2): skip the test if there are fewer GPUs. one_quick: all cases except the first are
    slow; one_quick(3): all except every third."""
    from samebits.testing.devices import hide_gpus

    cases: Counter[str] = Counter()
    num_gpus = hide_gpus()
    for item in items:
        if mark := item.get_closest_marker("one_quick"):
            name = item.nodeid.partition("[")[0]
            if cases[name] % (mark.args[0] if mark.args else sys.maxsize):
                item.add_marker(pytest.mark.slow)
            cases[name] += 1
        needed = max((mark.args[0] if mark.args else 1 for mark in item.iter_markers("gpu")), default=0)
        if needed > num_gpus:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA devices, there are {num_gpus}"))

    # the longest first: if a test of minutes ran last, only one core would work and the others would be idle
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Forbid calls of limit(...) while tests are collected."""
    limits.collecting = True


def pytest_collection_finish() -> None:
    """Allow calls of limit(...) again."""
    limits.collecting = False


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Set the time limit of each test for the speed of this machine, as marks and pyproject.toml cannot."""
    mark = item.get_closest_marker("timeout")
    item.add_marker(pytest.mark.timeout(limit(mark.args[0] if mark else 150)), append=False)
    yield


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the callbacks of runs, ignoring their config: use(callback, ...)."""
    run = module("run")
    return lambda *callbacks: monkeypatch.setattr(run, "make_callbacks", lambda config: list(callbacks))


@pytest.fixture
def train_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `./run train ...` as a user does, in a new folder."""

    def command(*overrides: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        train = [sys.executable, str(program().root / "src" / "train.py")]
        return called([*train, *overrides], code, cwd=tmp_path, env={**os.environ, **env})

    return command


@pytest.fixture(autouse=True)
def _only_the_threads_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the thread of pytest-xdist: because of it all ranks would be spawned, which is slow and loses patches."""
    monkeypatch.setattr("samebits.host.gpu.num_threads", lambda: 1)


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time() -> None:
    """Seed torch before each test."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill processes that a failed test has left, as they would keep a core busy for the rest of the suite."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for pid in processes_with(str(folder)) if folder is not None else ():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
