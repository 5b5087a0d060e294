"""Whatever happens to a rank, wherever it is: the run ends soon, says why, leaves nothing, and goes on bit-equal.

Faults are put into the functions of the loop before the ranks are forked from this process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QUICK, assert_equal, last_checkpoint, metrics, result, start_run, status
from omegaconf import OmegaConf

import lab.checkpoint
import lab.loop
from lab.errors import RunFailed

TIMEOUT_S = 3
COMMON = (
    *QUICK, "trainer.max_steps=14", "trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=5",
    "trainer.ema_decay=0.9", "model.dropout=0.2", "hardware.eval_batch_size=16", f"trainer.timeout={TIMEOUT_S}",
)  # fmt: skip
TWO = (*COMMON, "trainer=ddp", "hardware.num_procs=2")
FAULTS = ("raise", "SIGKILL", "SIGTERM", "hang")
PLACES = ("train", "evaluation", "saving")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run."""
    return start_run(tmp_path_factory.mktemp("straight") / "run", *TWO)


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process holds the run's directory, none is a child of this one, and no temporary file stays."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children(os.getpid())
    yield
    assert not holds_lock(tmp_path / "run")
    assert children(os.getpid()) == before
    assert not list(temporary.iterdir())
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


def holds_lock(run_dir: Path) -> bool:
    with open(run_dir / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def strike(fault: str) -> None:
    if fault == "raise":
        raise ZeroDivisionError("the cause")
    if fault == "hang":
        time.sleep(1000)
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
        on_call(monkeypatch, lab.loop, "forward_loss", rank, 5 + 8 + 2, fault)  # 8 calls are the evaluation's
    elif place == "evaluation":  # in the middle of the one at step 8
        on_call(monkeypatch, lab.loop, "forward_loss", rank, 8 + 8 + 3, fault)
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

        monkeypatch.setattr(lab.checkpoint.torch, "save", half)
    else:
        on_call(monkeypatch, lab.loop, "gather", rank, 4, fault)


def go_on(run: Path) -> Path:
    from lab.start import start

    start(OmegaConf.load(run / "config.yaml"), run, [], own_process=False)  # type: ignore[arg-type]
    return run


def assert_same(run: Path, straight: Path) -> None:
    assert_equal(last_checkpoint(run), last_checkpoint(straight))
    assert metrics(run) == metrics(straight)
    first, second = result(run), result(straight)
    assert {k: first[k] for k in first if "/" in k} == {k: second[k] for k in second if "/" in k}
    assert status(run)["status"] == "finished"


def matrix() -> list[Any]:
    cases = [(fault, place, rank) for fault in FAULTS for place in PLACES for rank in (0, 1)]
    slow = [fault == "hang" and (place, rank) not in (("train", 1), ("evaluation", 0)) for fault, place, rank in cases]
    return [pytest.param(*case, marks=pytest.mark.slow if late else ()) for case, late in zip(cases, slow)]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("fault", "place", "rank"), matrix())
def test_a_fault_ends_the_run_and_it_goes_on(
    tmp_path: Path,
    straight: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fault: str,
    place: str,
    rank: int,
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        put_fault(patch, place, rank, fault)
        began = time.monotonic()
        with pytest.raises(SystemExit if fault == "SIGTERM" else RunFailed) as end:
            start_run(run, *TWO)
        seconds = time.monotonic() - began
    shown = capfd.readouterr().err
    state = status(run)
    if fault == "SIGTERM":
        assert (state["status"], state["signal"], end.value.args) == ("preempted", "SIGTERM", (75,))
        assert seconds < 10
    else:
        assert (state["status"], state["rank"]) == ("failed", rank), state
        assert seconds < (10 if fault != "hang" else (3 if place == "saving" else 1) * TIMEOUT_S + 10)
    if fault == "raise":
        assert "ZeroDivisionError: the cause" in state["traceback"]
        assert shown.count("Traceback") == 1
        assert "ZeroDivisionError: the cause" in shown
    if fault == "SIGKILL":
        assert f"rank {rank} was killed by SIGKILL" in str(end.value)
    if fault == "hang":
        doing = {"train": "training", "evaluation": "evaluating", "saving": "saving"}[place]
        assert f"rank {rank} hung" in str(end.value)
        assert doing in str(end.value)
        assert "time.sleep(1000)" in shown
    assert not holds_lock(run)
    if place != "evaluation" or fault == "SIGTERM":
        assert last_checkpoint(run)["step"] >= 5
    assert_same(go_on(run), straight)


@pytest.mark.usefixtures("nothing_left")
def test_a_stop_between_evaluations_is_exact_with_three_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three numbers have more than one sum: what is added first must not depend on when the run began."""
    three = (*COMMON, "trainer=ddp", "hardware.num_procs=3", "trainer.global_batch_size=66", "model.hidden=[32,32,32]")
    straight = start_run(tmp_path / "straight", *three)
    with monkeypatch.context() as patch:
        on_call(patch, lab.loop, "forward_loss", 2, 7, "SIGTERM")
        with pytest.raises(SystemExit):
            start_run(tmp_path / "run", *three)
    assert 0 < last_checkpoint(tmp_path / "run")["step"] < 14
    assert_same(go_on(tmp_path / "run"), straight)
