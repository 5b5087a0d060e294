"""What every launcher of this project does, without jobs: a terminal that goes away, Ctrl-C, sweep.fail_fast."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.plugins.launcher import Launcher
from hydra_plugins.samebits_ray import RayLauncher
from hydra_plugins.samebits_slurm import SlurmLauncher
from hydra_plugins.samebits_sweep import PoolLauncher

from samebits.errors import ConfigError
from samebits.sweeps import Work, run_sweep
from samebits.sweeps.launching import Launch
from samebits.sweeps.options import SweepConfig
from samebits.sweeps.screen import Screen
from samebits.testing.processes import in_a_terminal, limit, wait_for


class Kept(Launch):
    """Runs a function in place of jobs, and keeps what it is asked for."""

    def __init__(self, act: Any = None, fail_fast: bool = False) -> None:
        options, ledger = (
            SimpleNamespace(fail_fast=fail_fast, retry_failed=False),
            SimpleNamespace(name="s", swept=[], objectives=[]),
        )
        work: Any = SimpleNamespace(ledger=ledger, total=[], options=options, on_end=self.ended)
        super().__init__(work, 2)
        self.act, self.asked = act, []

    def ended(self, job: Any) -> None:
        self.asked.append(job.key)

    def _run(self) -> None:
        self.act(self)

    def _end(self, number: signal.Signals) -> None:
        self.asked.append(number)

    def _kill(self) -> None:
        self.asked.append("now")


def test_the_first_signal_is_passed_on_and_only_a_second_ctrl_c_kills() -> None:
    def act(kept: Kept) -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)

    kept = Kept(act)
    assert kept.run() == signal.SIGTERM
    assert kept.asked == [signal.SIGTERM, "now"]
    assert Kept(lambda kept: None).run() is None


@pytest.mark.parametrize(("retry_failed", "says"), [(False, "3/3 "), (True, "2/3 ")])
def test_jobs_that_failed_before_are_not_awaited(
    retry_failed: bool, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    states = {"a": "finished", "b": "failed", "c": "finished"}

    def job(key: str) -> Any:
        return SimpleNamespace(
            key=key, number=0, overrides=(), state=lambda: states[key], result=lambda: {"val/loss": 3.25e-5}
        )

    ledger: Any = SimpleNamespace(swept=[], objectives=[{"key": "val/loss", "mode": "min"}])
    screen = Screen(ledger, [job("a"), job("b")], 1, retry_failed)
    screen.total = 3
    screen.end(job("c"), "finished", 90_000.0)
    said = capsys.readouterr().err
    assert said.startswith(says)
    assert "val/loss=3.25e-05" in said
    assert ("about 25:00:00 left" in said) == retry_failed


def test_ctrl_c_in_a_launcher_of_others_ends_the_sweep_as_in_one_of_this_project(tmp_path: Path) -> None:
    """hydra/launcher=joblib raises KeyboardInterrupt. What has ended by then is recorded."""

    def launch(overrides: Any, first: int) -> None:
        raise KeyboardInterrupt

    ledger: Any = SimpleNamespace(directory=tmp_path)
    launcher: Any = SimpleNamespace(launch=launch)
    jobs: list[Any] = [SimpleNamespace(directory=tmp_path / key, key=key) for key in "ab"]
    ended: list[Any] = []
    assert run_sweep(launcher, Work(ledger, jobs, jobs, SweepConfig(), ended.append)) == signal.SIGINT
    assert ended == jobs


@pytest.mark.parametrize("fail_fast", [False, True])
def test_the_first_failure_ends_the_others_where_that_is_asked(fail_fast: bool) -> None:
    def act(kept: Kept) -> None:
        for key, state in (("a", "finished"), ("b", "failed"), ("c", "failed")):
            job: Any = SimpleNamespace(key=key, number=0, overrides=(), state=lambda s=state: s, status=dict)
            kept._tell(job, 1.0)

    kept = Kept(act, fail_fast)
    assert kept.run() is None  # no signal
    assert kept.asked == (["a", "b", signal.SIGTERM, "c"] if fail_fast else ["a", "b", "c"])


@pytest.mark.parametrize("launcher", [PoolLauncher, SlurmLauncher, RayLauncher])
def test_another_sweeper_is_refused(launcher: type[Launcher]) -> None:
    with pytest.raises(ConfigError, match=r"^hydra/launcher: this launcher requires hydra/sweeper=ledger or optuna"):
        launcher().launch([["seed=1"]], 0)  # type: ignore[call-arg]


HUNG_UP = f"""
import pathlib, sys, time
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_launching import Kept
def act(kept):
    pathlib.Path(sys.argv[1]).touch()
    while not kept._ending:
        time.sleep(0.01)
    print("to a terminal that is not there", flush=True)
sys.exit(100 + Kept(act).run())
"""


@pytest.mark.slow
def test_a_terminal_that_goes_away_ends_the_jobs_and_no_print_raises(tmp_path: Path) -> None:
    process, terminal = in_a_terminal(sys.executable, "-c", HUNG_UP, str(tmp_path / "begun"))
    wait_for((tmp_path / "begun").exists, process)
    os.close(terminal)
    assert process.wait(limit(30)) == 100 + signal.SIGHUP
