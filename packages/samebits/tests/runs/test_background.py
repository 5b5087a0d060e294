"""Checkpoints written beside the loop: the same bytes, of the state as it was, and never half of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samebits.checkpoints import Checkpoints, background, checkpoint, load_checkpoint
from samebits.checkpoints.background import Background
from samebits.errors import RunFailed
from samebits.testing import assert_equal
from samebits.testing.processes import limit
from samebits.world import World

MAIN = World(0, 1, 0, torch.device("cpu"))
SAVE = torch.save


def payload(step: int, best: list[list[float]] | None = None) -> dict[str, Any]:
    """Tensors of all kinds; some share memory."""
    torch.manual_seed(step)
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    whole = torch.randn(6, 4)
    task = OrderedDict(
        row=whole[2], columns=whole.t(), whole=whole, nothing=torch.zeros(0, 3), one=torch.tensor(True),
        half=torch.randn(3).bfloat16(), long=torch.tensor(2**40), complex=torch.randn(2, dtype=torch.complex64),
    )  # fmt: skip
    ranks = [{"rng": {"torch": torch.get_rng_state(), "python": (3, (1, 2), None)}, "totals": {"loss": whole.sum()}}]
    plain = {
        "step": step,
        "samples": 8 * step,
        "best": best or [],
        "evals_without_improvement": 0,
        "logged_step": 0,
        "scored_step": 0,
    }
    state = {"model": model.state_dict(), "ema": None, "optimizer": optimizer.state_dict(), "schedule": {"updates": 1}}
    return {**state, "task": task, "ranks": ranks, "counts": {"loss": 2}, **plain}


def test_the_thread_works_on_the_ranks_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread begins with GPU 0, where a question to the device takes half a GB for each rank."""
    own = threading.local()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(own, "gpu", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(own, "gpu", number))
    torch.cuda.set_device(3)
    seen: list[int] = []
    background = Background()
    background.start(lambda: seen.append(torch.cuda.current_device()))
    background.wait()
    assert seen == [3]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class Gate:
    """torch.save that waits, and may fail then; `inside` is set when it is called."""

    def __init__(self) -> None:
        self.inside, self.open = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.at_once, self.most = 0, 0

    def __call__(self, content: Any, file: Any) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.inside.set()
        assert self.open.wait(limit(30))
        if self.error is not None:
            file.write(b"half")
            raise self.error
        SAVE(content, file)
        self.at_once -= 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(checkpoint.torch, "save", gate)
    yield gate
    gate.open.set()


def test_the_file_is_the_one_that_a_waiting_loop_writes(tmp_path: Path) -> None:
    """Byte for byte, so what shares memory shares it in the file, and again with the memory of the copy before."""
    for name, beside in (("waits", False), ("beside", True)):
        (tmp_path / name).mkdir()
        with Checkpoints(tmp_path / name, MAIN, save_async=beside) as checkpoints:
            for step in (1, 2, 3):
                checkpoints.save_last(payload(step))
            checkpoints.save_best(payload(3, [[0.5, 3]]))
            checkpoints.wait()
    assert names(tmp_path / "beside") == names(tmp_path / "waits")
    for name in names(tmp_path / "waits"):
        assert (tmp_path / "beside" / name).read_bytes() == (tmp_path / "waits" / name).read_bytes(), name
    assert_equal(load_checkpoint(tmp_path / "beside/last_000000003.pt"), payload(3))


def test_it_is_the_state_of_the_save_whatever_the_loop_does_next(tmp_path: Path, gate: Gate) -> None:
    state = payload(4)
    with Checkpoints(tmp_path, MAIN, save_async=True) as checkpoints:
        checkpoints.save_last(state)
        assert gate.inside.wait(limit(30))
        for value in (*state["model"].values(), *state["task"].values(), state["ranks"][0]["totals"]["loss"]):
            value.zero_()
        for values in state["optimizer"]["state"].values():
            values["exp_avg"].zero_()
        state["counts"]["loss"] = 9
        state["optimizer"]["param_groups"][0]["lr"] = 9.0
        state["best"].append([0.0, 4])
        gate.open.set()
    assert_equal(load_checkpoint(tmp_path / "last_000000004.pt"), payload(4))


def test_a_save_before_the_last_is_written_waits(tmp_path: Path, gate: Gate) -> None:
    """Two at once would need memory twice, and the older could come last. Also: what is outdated goes last."""
    saved: list[float] = []
    with Checkpoints(tmp_path, MAIN, save_async=True, saved=saved.append) as checkpoints:
        gate.open.set()
        for step in (1, 2):
            checkpoints.save_last(payload(step))
        checkpoints.wait()
        assert len(saved) == 2
        gate.open.clear(), gate.inside.clear()
        checkpoints.save_last(payload(3))
        assert gate.inside.wait(limit(30))
        assert checkpoints._background._thread.is_alive()
        checkpoints.prepare_and_check()  # says nothing, and does not wait
        kept = {name for name in names(tmp_path) if not name.startswith(".")}
        assert kept == {"last_000000001.pt", "last_000000002.pt"}, "none is deleted before the new one is durable"
        assert len(saved) == 2
        threading.Timer(0.2, gate.open.set).start()
        checkpoints.save_last(payload(4))  # waits for the one at 3
        assert (tmp_path / "last_000000003.pt").exists()
        assert len(saved) >= 3, "the one at 4 may be written by now, the one at 3 is"
    assert len(saved) == 4
    assert names(tmp_path) == ["last_000000003.pt", "last_000000004.pt"]
    assert gate.most == 1
    for step in (3, 4):
        assert_equal(load_checkpoint(tmp_path / f"last_{step:09d}.pt"), payload(step))


@pytest.mark.parametrize("notice", ["check", "wait", "save_last", "exit"])
def test_a_failed_write_stops_the_run(tmp_path: Path, gate: Gate, notice: str) -> None:
    says = r"last_000000002\.pt cannot be written: No space left on device; earlier checkpoints are complete"
    checkpoints = Checkpoints(tmp_path, MAIN, save_async=True)
    with pytest.raises(RunFailed, match=says), checkpoints:  # noqa: PT012
        gate.open.set()
        checkpoints.save_last(payload(1))
        checkpoints.wait()
        gate.open.clear()
        gate.error = OSError(28, "No space left on device")
        checkpoints.save_last(payload(2))
        checkpoints.prepare_and_check()
        gate.open.set()
        end = time.monotonic() + limit(30)
        while notice == "check" and time.monotonic() < end:
            checkpoints.prepare_and_check()
        if notice == "wait":
            checkpoints.wait()
        if notice == "save_last":
            checkpoints.save_last(payload(3))
        assert notice == "exit"
    assert names(tmp_path) == ["last_000000001.pt"]
    assert_equal(load_checkpoint(tmp_path / "last_000000001.pt"), payload(1))


@pytest.mark.slow
def test_a_run_that_fails_completes_what_it_writes(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own error is the one that is told; of the write that failed beside it there is a warning."""
    for error, left in ((None, ["last_000000001.pt"]), (OSError(28, "No space left on device"), [])):
        folder = tmp_path / str(bool(error))
        folder.mkdir()
        gate.error = error
        gate.open.clear()
        with pytest.raises(ZeroDivisionError), Checkpoints(folder, MAIN, save_async=True) as checkpoints:  # noqa: PT012
            checkpoints.save_last(payload(1))
            threading.Timer(0.2, gate.open.set).start()
            raise ZeroDivisionError
        assert names(folder) == left
    assert [record.getMessage().split(": ")[1] for record in caplog.records if record.name == "samebits"] == [
        "No space left on device; earlier checkpoints are complete (see docs/troubleshooting.md#disk-full)"
    ]


def test_only_locked_memory_is_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload without tensors on a GPU may be followed by one with some, and by a larger one."""
    locked: set[int] = set()
    monkeypatch.setattr(background, "lock_pages", lambda memory: locked.add(memory.data_ptr()))
    monkeypatch.setattr(background, "unlock_pages", lambda memory: locked.remove(memory.data_ptr()))
    copies = background.Copies()
    for size in (0, 64, 128, 64):
        copies._room(True, size)
    assert len(locked) == 1
