"""Hooks and fixtures of pytest, loaded by `pytest_plugins = ["samebits.testing.plugin"]` in conftest.py.

Markers: slow, one_quick, gpu (see pytest_collection_modifyitems). Fixtures: use, train_command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from samebits.testing.devices import hide_gpus
from samebits.testing.processes import called, limit, limits, module, processes_with, program, warm

# one thread: runs are forked from this process, and a forked OpenMP pool would hang
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["WANDB_MODE"] = "offline"
# else each worker, and each Python that a test starts, compiles all that it imports anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
torch.set_num_threads(1)
# the same examples each time, and no verdict on a machine that pauses
checks = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=checks)
hypothesis.settings.load_profile("suite")
# nohup, and a shell that starts this in the background, have some signals ignored, and all runs would inherit that
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
NUM_GPUS = hide_gpus()
warm.BEGAN.update(os.environ)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Many of the slow tests wait, for a server, a scheduler, a timeout: with them three workers to two cores. Each
    starts runs of several processes: those of more than 4 cores would be in each other's way."""
    workers = min((yield), 4)
    return workers if "not slow" in config.option.markexpr else 3 * workers // 2


@pytest.hookimpl(tryfirst=True)  # before -m is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """gpu, gpu(2): skipped where there are fewer. one_quick: all cases but the first are slow; one_quick(3): but every
    third."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_quick"):
            name = item.nodeid.partition("[")[0]
            if cases[name] % (mark.args[0] if mark.args else sys.maxsize):
                item.add_marker(pytest.mark.slow)
            cases[name] += 1
        needed = max((mark.args[0] if mark.args else 1 for mark in item.iter_markers("gpu")), default=0)
        if needed > NUM_GPUS:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA devices, there are {NUM_GPUS}"))

    # the longest first: behind all others one of some minutes would have one core at work, and the rest idle
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    limits.collecting = True


def pytest_collection_finish() -> None:
    limits.collecting = False


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs is ended; neither its mark nor `timeout` in pyproject.toml knows how slow this machine is."""
    mark = item.get_closest_marker("timeout")
    item.add_marker(pytest.mark.timeout(limit(mark.args[0] if mark else 150)), append=False)
    yield


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make runs have these callbacks, whatever their config says: use(callback, ...)."""
    run = module("run")
    return lambda *callbacks: monkeypatch.setattr(run, "make_callbacks", lambda config: list(callbacks))


@pytest.fixture
def train_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `./run train ...` as a user does, from a folder of its own."""

    def command(*overrides: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        train = [sys.executable, str(program().root / "src" / "train.py")]
        return called([*train, *overrides], code, cwd=tmp_path, env={**os.environ, **env})

    return command


@pytest.fixture(autouse=True)
def _only_the_threads_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist's own thread would have all ranks spawned, which is slow and loses what is patched."""
    monkeypatch.setattr("samebits.host.gpu.num_threads", lambda: 1)


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails half way must not burn a core for the rest of the suite."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for pid in processes_with(str(folder)) if folder is not None else ():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
