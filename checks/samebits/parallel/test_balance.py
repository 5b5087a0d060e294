"""The figures that tell ranks apart: the slow rank is named, whatever makes it slow, and equal ones are not."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, ROOT
from omegaconf import OmegaConf
from torch import nn

import lab.objective
import lab.optimizer_step
import samebits.parallel.balance
from lab.datasets.synthetic import Synthetic
from lab.tasks.supervised import Supervised
from samebits.testing import metrics, result, start_run, status

SLOW_S = 0.06
RUN = (
    *QUICK, "trainer=ddp", "trainer.max_steps=16", "trainer.log_every=4", "trainer.eval_every=null",
    "trainer.save_every=null", "data=synthetic",
)  # fmt: skip


class SpeedMeter:
    """Of each rank: only what a test says takes time, so that the machine cannot make a rank slow."""

    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-4
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SpeedMeter:
    made = SpeedMeter()
    monkeypatch.setattr(samebits.parallel.balance.HostClock, "now", staticmethod(made.perf_counter))
    return made


def slow_model(monkeypatch: pytest.MonkeyPatch, clock: SpeedMeter, ranks: str = "1") -> None:
    original = lab.objective.forward_loss

    def forward_loss(*args: Any) -> Any:
        clock.now_s += SLOW_S if os.environ["RANK"] in ranks and torch.is_grad_enabled() else 0
        return original(*args)

    monkeypatch.setattr(lab.objective, "forward_loss", forward_loss)


def slow_dataset(monkeypatch: pytest.MonkeyPatch, clock: SpeedMeter) -> None:
    original = Synthetic.gather

    def gather(self: Synthetic, rows: np.ndarray, out: Any = None) -> Any:
        clock.now_s += SLOW_S * len(rows) / 32 if os.environ.get("RANK") == "1" else 0
        return original(self, rows, out)

    monkeypatch.setattr(Synthetic, "gather", gather)


def slow_optimizer(monkeypatch: pytest.MonkeyPatch, clock: SpeedMeter) -> None:
    """After the all-reduce: the time that the other rank then waits is at the next step's."""
    original = lab.optimizer_step.update

    def update(*args: Any) -> None:
        clock.now_s += SLOW_S if os.environ.get("RANK") == "1" else 0
        original(*args)

    monkeypatch.setattr(lab.optimizer_step, "update", update)


CAUSES: dict[str, Callable[[pytest.MonkeyPatch, SpeedMeter], None]] = {
    "check its transforms": slow_model,
    "it waits for its data": slow_dataset,
    "": slow_optimizer,
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_a_slow_rank_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], clock: SpeedMeter, cause: str
) -> None:
    CAUSES[cause](monkeypatch, clock)
    monkeypatch.setattr(samebits.parallel.balance, "NAME_AFTER_S", 0.3)
    run = start_run(
        tmp_path / "run", *RUN, "hardware.num_procs=2", "data.loader=workers", "data.num_workers=0",
        "process.straggler_threshold=1.5", "hardware.micro_batch_size=16",
    )  # fmt: skip
    shown = capfd.readouterr().err
    assert shown.count("rank 1 slows down the other ranks") == 2, shown  # while it runs and at the end
    assert cause in shown
    figures = result(run)["balance"]
    quick, slow = (rank["step_time_ms"] for rank in figures["ranks"])
    assert slow > SLOW_S * 1000 > 10 * quick
    assert figures["step_time"] == pytest.approx(2 * slow / (quick + slow), rel=1e-3)
    assert (figures["ranks"][1]["data_wait_ms"] > SLOW_S * 1000) == (cause == "it waits for its data")


@pytest.mark.slow
def test_equal_ranks_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], clock: SpeedMeter
) -> None:
    slow_model(monkeypatch, clock, ranks="012")
    monkeypatch.setattr(samebits.parallel.balance, "NAME_AFTER_S", 0.1)
    run = start_run(
        tmp_path / "run", *RUN, "hardware.num_procs=3", "process.straggler_threshold=0.1",
        "trainer.global_batch_size=66",
    )  # fmt: skip
    shown = capfd.readouterr().err
    assert "slows down the other ranks" not in shown
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key in ("memory", "step_time", "data_wait"):
        assert 1 <= result(run)["balance"][key] <= 3
        assert [1 <= line[f"balance/{key}"] <= 3 for line in lines] == [True] * 4
    assert result(run)["balance"]["memory"] < 1.1
    assert len(result(run)["balance"]["ranks"]) == 3


@pytest.mark.slow
def test_marks_that_the_device_has_yet_to_pass_are_read_at_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, where reading them earlier would wait for the device."""
    original = samebits.parallel.balance.HostClock.seconds

    def seconds(self: Any, start: float, end: float) -> float:
        callers = [frame.name for frame in traceback.extract_stack()]
        assert "row" in callers
        assert "step" not in callers
        return original(self, start, end)

    monkeypatch.setattr(samebits.parallel.balance.HostClock, "passed", lambda self, mark: False)
    monkeypatch.setattr(samebits.parallel.balance.HostClock, "seconds", seconds)
    run = start_run(tmp_path / "run", *RUN, "hardware.num_procs=2")
    assert all(rank["step_time_ms"] > 0 for rank in result(run)["balance"]["ranks"])


def with_slope(self: Supervised, model: nn.Module, batch: Any) -> Any:
    """Logs how steep the loss is: a gradient by the weights in `losses`, as EWC, GradNorm, DARTS or MAML take it."""
    output = model(batch["x"])
    loss = nn.functional.cross_entropy(output.float(), batch["y"].long(), reduction="none")
    slope = torch.zeros_like(loss)
    if torch.is_grad_enabled():
        found = torch.autograd.grad(loss.mean(), list(model.parameters()), retain_graph=True)
        slope = torch.stack([g.square().sum() for g in found]).sum().sqrt().expand_as(loss)
    return {"loss": loss, "slope": slope}, output


def test_a_task_may_take_gradients_by_the_weights_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the steps that are measured, too, and in both micro-batches of each."""
    monkeypatch.setattr(Supervised, "losses", with_slope)
    monkeypatch.setattr(Supervised, "loss_names", ("slope",))
    run = start_run(
        tmp_path, *QUICK, "trainer=ddp", "hardware.num_procs=2",
        "trainer.max_steps=6", "trainer.log_every=1", "hardware.micro_batch_size=16",
    )  # fmt: skip
    assert status(run)["status"] == "finished"
    assert [line["step"] for line in metrics(run) if line.get("train/slope", 0) > 0] == [1, 2, 3, 4, 5, 6]
    assert all(rank["step_time_ms"] > 0 for rank in result(run)["balance"]["ranks"])


def test_debug_fast_takes_more_steps_than_any_part_warms_up_for() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "packages/samebits/src").rglob("*.py"))
    phases = [int(steps) for steps in re.findall(r"^WARM_UP\w* = (\d+)", source, re.MULTILINE)]
    assert phases
    assert OmegaConf.load(ROOT / "conf/debug/fast.yaml").trainer.max_steps > max(phases) + 1
