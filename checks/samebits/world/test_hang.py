"""A process that is stopped, or whose native code holds the interpreter, ends; one that only takes long does not."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, ROOT
from sweeps import SWEEP, call_faulty, job_dirs, states

import lab.objective
from lab.callbacks.base import Callback
from lab.program import PROGRAM
from samebits.errors import RunFailed
from samebits.sweeps.report import read_study
from samebits.testing import start_run, status
from samebits.testing.processes import at_once, called, importing, limit, processes_with, slowdown
from samebits.world.watchdog import HELD, HangWatchdog

TIMEOUT_S = round(2 * slowdown())
SOON = f"process.timeout={TIMEOUT_S}"
STEPS = (*QUICK, "trainer.max_steps=8", "trainer.log_every=2")
TWO = (*STEPS, "trainer=ddp", "hardware.num_procs=2")


def at_call(monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> None:
    """In every rank, before the `number`-th forward pass with gradients."""
    original, calls = lab.objective.forward_loss, [0]

    def replaced(*rest: Any) -> Any:
        calls[0] += torch.is_grad_enabled()
        if calls[0] == number and torch.is_grad_enabled():
            act()
        return original(*rest)

    monkeypatch.setattr(lab.objective, "forward_loss", replaced)


@pytest.mark.slow
def test_all_ranks_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """No rank is left to tell of the others: the parent does."""

    def strike() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    at_call(monkeypatch, 4, strike)
    faulthandler.disable()  # pytest's, which would keep what the run's own says
    with pytest.raises(
        RunFailed, match=r"rank \d hung: it did not run for \d+ s .*training, at step 3\); it is stopped"
    ):
        start_run(tmp_path / "run", *TWO, SOON)
    assert status(tmp_path / "run")["status"] == "failed"
    assert "in strike" in status(tmp_path / "run")["traceback"]
    assert "in strike" in capfd.readouterr().err


LONE = """
import ctypes, os, signal, sys, time
import lab.objective, train
forward_loss, calls = lab.objective.forward_loss, []
def faulty(*rest):
    calls.append(1)
    if len(calls) == 4:
        strike()
    return forward_loss(*rest)
def strike():
    {fault}
lab.objective.forward_loss = faulty
sys.exit(train.main())
"""


def lone(tmp_path: Path, fault: str, *overrides: str, code: int = 0, prelude: str = "") -> str:
    """What it says on stderr."""
    command = [sys.executable, "-c", prelude + LONE.format(fault=fault), *STEPS, SOON, *overrides]
    return called([*command, f"hydra.run.dir={tmp_path}/run"], code, 90, env=importing(ROOT / "src")).stderr


@pytest.mark.slow
def test_native_code_in_a_process_without_a_parent(tmp_path: Path) -> None:
    data = ("data=synthetic", "data.loader=workers", "data.num_workers=1")
    shown = lone(tmp_path, "ctypes.PyDLL(None).sleep(1000)", *data, code=1)
    assert "Timeout (0:00:" in shown
    assert f"in {HELD}\n" in shown
    assert "in strike" in shown.rpartition("Thread ")[2]
    assert status(tmp_path / "run")["status"] == "running"  # a report calls this one killed
    assert read_study(PROGRAM, [tmp_path / "run"]).jobs[0].status == "killed"
    assert not processes_with(str(tmp_path))


def test_a_fork_of_a_process_with_a_timer_ends() -> None:
    """It has the timer's lock, but not its thread, and Python waits for that at its end."""
    code = """
import os, sys
from samebits.world.timer import disarm, rearm
rearm(1000)
pid = os.fork()
if not pid:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
disarm()
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=importing(ROOT / "src"), start_new_session=True)
    try:
        assert process.wait(limit(20)) == 0
    finally:
        with suppress(ProcessLookupError):  # of what waits for the lock
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_rank_of_torchrun_that_hangs(tmp_path: Path) -> None:
    """The others tell, and end. It ends by itself."""
    fault = "if os.environ['RANK'] == '1': ctypes.PyDLL(None).sleep(1000)"
    (tmp_path / "faulty.py").write_text(LONE.format(fault=fault))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(tmp_path / "faulty.py"), *STEPS, SOON, "trainer=ddp", f"hydra.run.dir={tmp_path}/run"]
    done = called(command, 1, 90, env=importing(ROOT / "src"))
    found = status(tmp_path / "run")
    assert (found["status"], found["rank"]) == ("failed", 1), done.stderr
    assert "rank 1 hung: the others waited for it" in found["error"]
    assert "rank 1 hung: the others waited for it" in done.stderr
    assert not processes_with(str(tmp_path))


@pytest.mark.slow
def test_ctrl_z_does_not_count(tmp_path: Path) -> None:
    """The terminal stops the process for longer than process.timeout, and `fg` continues it."""
    fault = f"os.system(f'(sleep {3 * TIMEOUT_S}; kill -CONT {{os.getpid()}}) &'); os.kill(os.getpid(), signal.SIGTSTP)"
    # a child in the group of another process of the session: else the kernel ignores SIGTSTP
    prelude = "import os; os.setpgid(0, 0)\n"
    began = time.monotonic()
    lone(tmp_path, fault, prelude=prelude)
    assert time.monotonic() - began > 3 * TIMEOUT_S
    assert status(tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
def test_a_job_of_a_pool_that_is_stopped_or_says_nothing(tmp_path: Path) -> None:
    pool = (f"process.timeout={TIMEOUT_S + 1}", "hydra/launcher=pool", "hydra.launcher.jobs_at_once=2")
    faults = {"stopped": "os.kill(os.getpid(), signal.SIGSTOP)", "silent": "ctypes.CDLL(None)._exit(0)"}
    at_once(
        lambda name: call_faulty(faults[name], *SWEEP, "seed=0,1", *pool, f"hydra.sweep.dir={tmp_path}/{name}", code=1),
        faults,
    )
    assert [states(tmp_path / name) for name in faults] == [["finished", "failed"]] * 2
    (hung,) = (found for job in job_dirs(tmp_path / "stopped") if (found := status(job))["status"] == "failed")
    assert re.search(r"the job hung: it did not run for \d+ s.*it is stopped", hung["error"])
    assert "in faulty" in hung["traceback"]
    assert not processes_with(str(tmp_path))


class Slow(Callback):
    """Rank 0 takes longer than process.timeout, and holds the others up."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        if state.step == 4 and os.environ.get("RANK", "0") == "0":
            time.sleep(2.2 * TIMEOUT_S)


@pytest.mark.slow
def test_a_callback_may_take_longer_than_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lab.run.make_callbacks", lambda config: [Slow()])
    start_run(tmp_path / "run", *TWO, SOON)
    assert status(tmp_path / "run")["status"] == "finished"
    says = f"rank 0: no progress for {TIMEOUT_S} s (Slow.on_log, at step 4); the limit is {36 * TIMEOUT_S} s (36 x"
    assert capfd.readouterr().err.count(says) == 1


class Deadlock(Callback):
    """Each rank waits for a message of the other."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        torch.distributed.recv(torch.zeros(1), src=1 - torch.distributed.get_rank())


@pytest.mark.slow
def test_a_deadlock_in_a_callback_ends_before_the_limit_of_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.run.make_callbacks", lambda config: [Deadlock()])
    monkeypatch.setattr(HangWatchdog, "USER_TIMEOUTS", 1000)
    with pytest.raises(RunFailed, match=r"all ranks wait for each other.*Deadlock.on_log"):
        start_run(tmp_path / "run", *TWO, SOON)


def sys_exit() -> None:
    sys.exit(3)


def os_exit() -> None:
    os._exit(0)


class Odd(BaseException):
    """Neither an exception nor a request to end."""


def odd() -> None:
    raise Odd("the cause")


ENDS = {
    sys_exit: r"rank 1 called sys.exit\(3\) at .*test_hang.py:\d+",
    os_exit: r"rank 1 ended with exit status 0 \(training, at step 3\), without an error record",
    odd: r"Odd: the cause",
    os.abort: r"rank 1 was killed by SIGABRT",
}


@pytest.mark.one_quick
@pytest.mark.parametrize("end", ENDS)
def test_a_rank_that_ends_before_its_time_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    """Not what its end does to the other."""
    at_call(monkeypatch, 4, lambda: end() if os.environ.get("RANK") == "1" else None)
    with pytest.raises(RunFailed):
        start_run(tmp_path / "run", *TWO)
    found = status(tmp_path / "run")
    assert (found["status"], found["rank"]) == ("failed", 1)
    assert re.search(ENDS[end], found["error"]), found["error"]


@pytest.mark.slow
def test_one_process_that_ends_before_its_time_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_call(monkeypatch, 4, sys_exit)
    with pytest.raises(RunFailed, match=r"rank 0 called sys.exit\(3\) at .*test_hang.py"):
        start_run(tmp_path / "run", *STEPS)
    assert status(tmp_path / "run")["status"] == "failed"
