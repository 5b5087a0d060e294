"""Whatever happens to a rank, wherever it is: the run ends soon, says why, leaves nothing, and goes on bit-equal.

Faults are put into the functions of the loop before the ranks are forked from this process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checking import ctrl_c_twice
from common import QUICK, ROOT, TRAIN

import lab.loop
import lab.objective
import samebits.checkpoints.checkpoint
import samebits.world.collectives
import samebits.world.launch
import samebits.world.watchdog
from lab.state import TrainState
from samebits.errors import RunFailed
from samebits.runs import is_claimed
from samebits.testing import assert_undisturbed, last_checkpoint, raise_at_step, resume_run, start_run, status
from samebits.testing.processes import called, held_command, importing, limit, sample_of, slow, slowdown, wait_for, warm

TIMEOUT_S = round(3 * slowdown())  # that a rank may stand still where nothing is wrong
COMMON = (
    *QUICK, "trainer.max_steps=14", "trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=5",
    "trainer.ema_decay=0.9", "model.dropout=0.2", "hardware.eval_batch_size=16",
)  # fmt: skip
TWO = (*COMMON, "trainer=ddp", "hardware.num_procs=2")
SOON = f"process.timeout={TIMEOUT_S}"  # of runs that hang: any other one would end when this machine pauses
FAULTS = ("raise", "SIGKILL", "SIGTERM", "hang")
PLACES = ("train", "evaluation", "saving")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Made in the first test that asks, where num_threads is patched: its ranks are forked."""
    return functools.cache(lambda: start_run(tmp_path_factory.mktemp("straight") / "run", *TWO))


@pytest.fixture
def straight(undisturbed: Callable[[], Path]) -> Path:
    return undisturbed()


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process holds the run's directory, none is a child of this one, and no temporary file stays."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children(os.getpid())
    yield
    assert not is_claimed(tmp_path / "run")
    assert children(os.getpid()) <= before
    assert not [f for f in temporary.iterdir() if not f.name.startswith("torchinductor")]  # torch's, not a rank's
    assert not [f for f in (tmp_path / "run").rglob(".*") if f.name not in (".lock",)]


def children(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


def strike(fault: str) -> None:
    if fault == "raise":
        raise ZeroDivisionError("the cause")
    if fault == "hang":
        time.sleep(1000)
    if fault == "native":
        ctypes.PyDLL(None).sleep(1000)  # PyDLL keeps the interpreter
    os.kill(os.getpid(), getattr(signal, fault))


def on_call(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, rank: int, number: int, fault: str) -> None:
    """The `number`-th call of holder.name on that rank meets the fault first."""
    original, calls = getattr(holder, name), [0]

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if int(os.environ.get("RANK", "0")) == rank and calls[0] == number:
            strike(fault)
        return original(*args, **kwargs)

    monkeypatch.setattr(holder, name, replaced)


def put_fault(monkeypatch: pytest.MonkeyPatch, place: str, rank: int, fault: str) -> None:
    if place == "train":  # after step 5 was saved, before gradients are averaged
        # the rehearsal's, 8 of the evaluation
        on_call(monkeypatch, lab.objective, "forward_loss", rank, 1 + 5 + 8 + 2, fault)
    elif place == "evaluation":  # in the middle of the one at step 8
        on_call(monkeypatch, lab.objective, "forward_loss", rank, 1 + 8 + 8 + 3, fault)
    elif rank == 0:  # half of a file is written
        original, calls = torch.save, [0]

        def half(payload: Any, file: Any, **kwargs: Any) -> None:
            calls[0] += isinstance(payload, dict) and "step" in payload
            if calls[0] == 4:
                calls[0] += 1
                file.write(b"half")
                file.flush()
                strike(fault)
            original(payload, file, **kwargs)

        monkeypatch.setattr(samebits.checkpoints.checkpoint.torch, "save", half)
    else:
        on_call(monkeypatch, TrainState, "rank_row", rank, 4, fault)


def matrix() -> list[Any]:
    """Each fault at each place, half of them in either rank."""
    pairs = itertools.product(enumerate(FAULTS), enumerate(PLACES))
    cases = [(fault, place, (i + j) % 2) for (i, fault), (j, place) in pairs]
    quick = [("SIGKILL", "saving", 1), ("SIGTERM", "evaluation", 1)]
    few = [("raise", "train", 0), *quick, ("hang", "evaluation", 0)]
    assert set(few) <= set(cases)
    return [case if case in quick else slow(*case) for case in sample_of(few, cases)]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("fault", "place", "rank"), matrix())
def test_a_fault_ends_the_run_and_it_goes_on(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    fault: str, place: str, rank: int,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        put_fault(patch, place, rank, fault)
        began = time.monotonic()
        with pytest.raises(SystemExit if fault == "SIGTERM" else RunFailed) as end:
            start_run(run, *TWO, *[SOON] * (fault == "hang"))
        seconds = time.monotonic() - began
    shown = capfd.readouterr().err
    state = status(run)
    if fault == "SIGTERM":
        assert (state["status"], state["signal"], end.value.args) == ("preempted", "SIGTERM", (75,))
        assert seconds < limit(30)
    else:
        assert (state["status"], state["rank"]) == ("failed", rank), state
        assert seconds < limit(30) + (fault == "hang") * 3 * TIMEOUT_S
    if fault == "raise":
        assert "ZeroDivisionError: the cause" in state["traceback"]
        assert shown.count(f"rank {rank} failed:\n") == 1
        assert "ZeroDivisionError: the cause" in shown
    if fault == "SIGKILL":
        assert f"rank {rank} was killed by SIGKILL" in str(end.value)
    if fault == "hang":
        doing = {"train": "training", "evaluation": "evaluating", "saving": "saving"}[place]
        assert f"rank {rank} hung" in str(end.value)
        assert doing in str(end.value)
        assert "time.sleep(1000)" in shown
    assert not is_claimed(run)
    if place != "evaluation" or fault == "SIGTERM":  # at step 5 the one of step 4 was on the disk
        assert max(int(path.stem[5:]) for path in (run / "checkpoints").glob("[bl]*.pt")) >= 4
    assert_undisturbed(resume_run(run, process__timeout="10m"), straight)


@pytest.mark.slow
def test_restarts_equal_the_undisturbed_run(tmp_path: Path) -> None:
    """Random ranks are killed at random moments, twice; the third attempt is left alone."""
    run = tmp_path / "run"
    overrides = [o for o in TWO if not o.startswith(("trainer.max_steps", "trainer.eval_every"))]
    overrides += ["trainer.max_steps=60", "trainer.eval_every=20", "trainer.save_every=7"]
    straight = start_run(tmp_path / "straight", *overrides)
    command = [*held_command(45, tmp_path / "killed"), *overrides, "process.max_restarts=2", f"hydra.run.dir={run}"]
    parent = warm.Popen(command, stderr=subprocess.PIPE, text=True)
    draw, seen = random.Random(os.getpid()), set[int]()
    for _ in range(2):
        # git is the parent's child for a moment, before there is a config
        ranks = wait_for(partial(two_more, run, parent.pid, seen), parent)
        seen |= ranks
        time.sleep(draw.uniform(0, 0.8))
        os.kill(draw.choice(sorted(ranks)), signal.SIGKILL)
    (tmp_path / "killed").touch()
    _, shown = parent.communicate(timeout=limit(60))
    assert parent.returncode == 0, shown
    attempts = [json.loads(line) for line in (run / "failures.jsonl").read_text().splitlines()]
    assert len(attempts) == shown.count("of 2, from") == 2
    assert all("was killed by SIGKILL" in attempt["message"] for attempt in attempts)
    assert_undisturbed(run, straight)
    assert not is_claimed(run)


def two_more(run: Path, parent: int, seen: set[int]) -> set[int] | None:
    found = children(parent) - seen
    return found if len(found) == 2 and (run / "config.yaml").exists() else None


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("error", ["RunFailed", "ZeroDivisionError"])
def test_what_would_fail_again_is_not_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """What the run says of itself: never. An exception that comes again before a new checkpoint: once."""
    kind = {"RunFailed": RunFailed, "ZeroDivisionError": ZeroDivisionError}[error]
    raise_at_step(monkeypatch, 7, kind("the cause"))
    with pytest.raises(RunFailed):
        start_run(tmp_path / "run", *COMMON, "process.max_restarts=5")
    kept = tmp_path / "run/failures.jsonl"
    # the first attempt made checkpoints, so it is tried again; the second made none
    assert (len(kept.read_text().splitlines()) if kept.exists() else 0) == (error == "ZeroDivisionError")


def torchrun(*overrides: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TRAIN[1], *overrides,
    ]  # fmt: skip


ENDLESS = (
    *QUICK, "trainer=ddp", "trainer.max_steps=1000000", "trainer.eval_every=null", "trainer.save_every=20",
    "trainer.log_every=20",
)  # fmt: skip


@pytest.mark.slow
def test_torchrun_ends_soon_and_names_the_rank(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = torchrun(*ENDLESS, f"hydra.run.dir={run}")
    process = warm.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list((run / "checkpoints").glob("last_*.pt")), process)
    os.kill(next(pid for pid in children(process.pid) if rank_of(pid) == 1), signal.SIGKILL)
    _, shown = process.communicate(timeout=limit(60))
    assert process.returncode == 1
    assert status(run)["status"] == "failed"
    assert "rank 1 has died" in status(run)["error"], shown
    assert status(run)["error"].partition(": ")[2] in shown
    assert not is_claimed(run)


def rank_of(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(v.partition(b"=")[2]) for v in variables if v.startswith(b"RANK="))


@pytest.mark.slow
def test_torchrun_stops_at_a_signal_to_one_rank(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = warm.Popen(
        torchrun(*ENDLESS, f"hydra.run.dir={run}"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: list((run / "checkpoints").glob("last_*.pt")), process)
    os.kill(next(pid for pid in children(process.pid) if rank_of(pid) == 1), signal.SIGUSR2)
    _, shown = process.communicate(timeout=limit(60))
    assert (status(run)["status"], status(run)["signal"]) == ("preempted", "SIGUSR2"), shown
    assert "exitcode  : 75" in shown
    assert f"at step {last_checkpoint(run)['step']}" in shown


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_now(tmp_path: Path) -> None:
    """What came before the save takes for ever."""
    run = tmp_path / "run"
    overrides = [*ENDLESS, "hardware.num_procs=2", f"hydra.run.dir={run}"]
    code = (
        "import sys, time, lab.loop, train\n"
        "def log_train(*a):\n    print('logged', flush=True)\n    time.sleep(1000)\n"
        f"lab.loop.log_train = log_train\nsys.argv = ['train.py', *{overrides!r}]\nsys.exit(train.main())"
    )
    process = warm.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert process.stdout is not None
    assert any("logged" in line for line in process.stdout)
    shown = ctrl_c_twice(process, "Ctrl-C again: now", lambda number: os.killpg(process.pid, number))
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert status(run)["status"] == "interrupted"
    assert not is_claimed(run)


@pytest.mark.slow
def test_a_requeued_command_ends_like_the_undisturbed_run(tmp_path: Path) -> None:
    """The same command again and again, as a scheduler does with one that ends with 75: one directory, one W&B run."""
    run = tmp_path / "run"
    overrides = [o for o in TWO if not o.startswith(("trainer.max_steps", "trainer.eval_every"))]
    overrides += ["trainer.max_steps=60", "trainer.eval_every=20", "trainer.save_every=null", "trainer.log_every=10"]
    straight = start_run(tmp_path / "straight", *overrides)
    command, steps, names = [*TRAIN, *overrides, "resume=auto", f"hydra.run.dir={run}"], [0], set()
    for time_s in ("0.001s", "0.001s", "1h"):
        done = called([*command, f"process.max_time={time_s}"], 0 if time_s == "1h" else 75)
        names.add(status(run)["wandb_id"])
        if time_s != "1h":
            assert (status(run)["status"], status(run)["signal"]) == ("preempted", "process.max_time"), done.stderr
            steps.append(last_checkpoint(run)["step"])
            assert f"stopped by process.max_time at step {steps[-1]}" in done.stderr
            assert steps[-2] < steps[-1] < 60
    assert len(names) == 1
    assert_undisturbed(run, straight)


@pytest.mark.slow
def test_one_process_that_hangs_is_ended(tmp_path: Path) -> None:
    """It has no parent to say so, and W&B hears of it."""
    code = (
        "import sys, time, lab.loop, samebits.loggers.logger, train\n"
        "def hang(*rest):\n    time.sleep(1000)\n"
        "def finish(self, ended, *rest):\n    print('W&B finishes with', ended, flush=True)\n"
        "lab.loop.validate_and_save_best, samebits.loggers.logger.WandbProcess.finish = hang, finish\n"
        "sys.exit(train.main())"
    )
    overrides = [o for o in COMMON if not o.startswith("logger")]
    overrides += [SOON, "logger=wandb", f"hydra.run.dir={tmp_path}/run"]
    done = called([sys.executable, "-c", code, *overrides], code=1, env=importing(ROOT / "src"))
    hung = f"rank 0 hung: it did not move for {TIMEOUT_S} s (process.timeout; training, at step 4)"
    assert f"failed: {hung}" in done.stderr
    assert "line 3, in hang" in done.stderr
    assert done.stdout == "W&B finishes with failed\n"
    assert status(tmp_path / "run")["status"] == "failed"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_native_code_that_holds_the_interpreter_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither its watch nor a signal's handler can run there; the kernel's signal shows where it stands."""
    monkeypatch.setattr(samebits.world.launch, "LAST_S", 2.0)
    on_call(monkeypatch, lab.objective, "forward_loss", 1, 7, "native")
    faulthandler.disable()  # pytest's, which would keep what the run's own says
    with pytest.raises(RunFailed, match=r"rank 1 hung.*native code holds its interpreter"):
        start_run(tmp_path / "run", *TWO, SOON)
    shown = capfd.readouterr().err
    assert "Fatal Python error: Aborted" in shown
    assert "in strike" in shown
