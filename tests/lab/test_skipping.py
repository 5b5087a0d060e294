"""Steps whose gradients are not finite are left out by the device itself: the host asks for nothing in any step."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, needs

import lab.loop
import lab.losses.cross_entropy
import lab.optimizer_step
from lab.tasks.base import Task
from lab.tasks.supervised import Supervised
from samebits.checkpoints import save_checkpoint
from samebits.errors import RunFailed
from samebits.testing import (
    SMALL,
    WAYS,
    Killed,
    TaskTests,
    assert_equal,
    assert_undisturbed,
    broken_off,
    devices,
    last_checkpoint,
    metrics,
    poison,
    raise_at_step,
    resume_run,
    start_run,
    status,
    values,
)

MODES = {"fp32": (), "skip": ("trainer.non_finite=skip",),
         "fp16, skip": ("hardware.precision=fp16", "trainer.non_finite=skip")}  # fmt: skip
STEPS = ("trainer.max_steps=6", "trainer.global_batch_size=12", "trainer.log_every=3")


MUON = needs("conf/optim/muon.yaml")
PAIRS = [("fp32", "adamw"), ("fp16, skip", "sgd"), pytest.param("fp32", "muon", marks=MUON),
         pytest.param("skip", "muon", marks=MUON)]  # fmt: skip


@pytest.mark.one_quick
@pytest.mark.parametrize(("mode", "optimizer"), PAIRS)
def test_the_host_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, optimizer: str) -> None:
    """With a moving average, clipping and micro-batches."""
    steps = devices.refused_in_steps(monkeypatch)
    start_run(
        tmp_path / "run", *QUICK, *STEPS, *MODES[mode], f"optim={optimizer}", "trainer.ema_decay=0.9",
        "hardware.micro_batch_size=5",
    )  # fmt: skip
    assert steps == [0, 1, 2, 3, 4, 5]


BAD = (0, 4, 6, 13)
LONG = ("trainer.max_steps=20", "trainer.global_batch_size=12", "trainer.log_every=3", "trainer.ema_decay=0.9",
        "trainer.save_every=7", "trainer.eval_every=10", "trainer.non_finite=skip")  # fmt: skip


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the steps BAD are NaN."""
    train_step, clip, now = lab.loop.train_step, lab.optimizer_step.clip, [0]

    def noted(loss_modules: Any, state: Any, *rest: Any) -> Any:
        now[0] = state.step
        return train_step(loss_modules, state, *rest)

    def clipped(gradients: list[torch.Tensor], limit: float | None) -> torch.Tensor:
        if now[0] in BAD:
            gradients[0].fill_(math.nan)
        return clip(gradients, limit)

    monkeypatch.setattr(lab.loop, "train_step", noted)
    monkeypatch.setattr(lab.optimizer_step, "clip", clipped)


RUNS = {
    "adamw": ("model.dropout=0.1",),
    "sgd": ("optim=sgd",),
    "dampened": ("optim=sgd", "optim.nesterov=false", "+optim.dampening=0.5"),
    "lion": ("optim=lion",),
    # deterministic: torch fills new memory with NaN
    "muon, sgd": ("optim=muon", "optim.rest._target_=torch.optim.SGD", "~optim.rest.betas", "+optim.rest.momentum=0.9",
                  "hardware.deterministic=true"),
}  # fmt: skip


@pytest.mark.one_quick
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "kind",
    ["adamw", "sgd", pytest.param("lion", marks=needs("conf/optim/lion.yaml")), pytest.param("muon, sgd", marks=MUON)],
)
def test_the_device_leaves_out_what_the_host_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """To the bit, the first step among the skipped."""
    run = (*QUICK, *LONG, *RUNS[kind])
    device = start_run(tmp_path / "device", *run)
    monkeypatch.setattr(lab.optimizer_step, "takes_found_inf", lambda optimizer: False)
    host = start_run(tmp_path / "host", *run)
    own, wanted = last_checkpoint(device), last_checkpoint(host)
    for part in ("model", "optimizer", "ema", "schedule"):
        assert_equal(own[part], wanted[part], part)
    assert metrics(device) == metrics(host)
    assert sum(line.get("train/skipped_steps", 0) for line in metrics(device)) == len(BAD)


@pytest.mark.usefixtures("poisoned")
def test_a_mean_is_of_the_steps_that_returned_the_value_and_were_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task returns a value in only some steps, of which other ones are skipped."""

    def train_step(task: Task, step: int, batches: Any, optimizer_step: Any) -> Any:
        values = optimizer_step("", batches)
        return values if step % 2 else values | {"even": torch.tensor(float(step))}

    monkeypatch.setattr(Supervised, "train_step", train_step)
    run = start_run(tmp_path, *QUICK, *LONG)
    found = {line["step"]: line.get("train/even") for line in metrics(run) if "train/lr" in line}
    for end in range(3, 19, 3):
        kept = [step for step in range(end - 3, end) if step % 2 == 0 and step not in BAD]
        assert found[end] == (sum(kept) / len(kept) if kept else None)
    assert sum(line.get("train/skipped_steps", 0) for line in metrics(run)) == len(BAD)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "dampened", pytest.param("muon, sgd", marks=MUON)])
def test_a_first_gradient_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One bias has none in two steps: torch's fused SGD has the momentum that its other kernel begins then."""

    def train_step(task: Task, step: int, batches: Any, optimizer_step: Any) -> Any:
        values = optimizer_step.gradients("", batches)
        if step < 2:
            next(p for p in optimizer_step.model.parameters() if p.dim() == 1).grad = None
        optimizer_step.update("")
        return values

    monkeypatch.setattr(Supervised, "train_step", train_step)
    key = "+optim.rest.fused" if kind == "muon, sgd" else "+optim.fused"
    ways = {"fused": (), "plain": (f"{key}=false",)}
    runs = [start_run(tmp_path / name, *QUICK, *STEPS, *RUNS[kind], *way) for name, way in ways.items()]
    torch.testing.assert_close(*(last_checkpoint(run)["model"] for run in runs))


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_killed_after_skipped_steps_is_undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: the last log before the save at 7 has not yet told the host of step 7."""
    run = (*QUICK, *LONG, "hardware.precision=fp16", "optim.lr=0.01")
    straight = start_run(tmp_path / "straight", *run)
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [9], *run), straight)


class Teacher(Task):
    """Has a moving average of the model, counts its updates and steps, has a sum of what it saw, and keeps the model
    small."""

    def setup(self, model: torch.nn.Module) -> None:
        self.average = copy.deepcopy(model).requires_grad_(False)
        for name in ("updates", "begun", "seen"):
            self.register_buffer(name, torch.zeros(()))

    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> Any:
        self.begun += 1  # type: ignore[operator, assignment]
        return optimizer_step("", batches)

    def predict(self, model: torch.nn.Module, batch: Any) -> Any:
        if self.training:
            self.seen += batch["x"].sum()  # type: ignore[operator, assignment]
        return model(batch["x"])

    def on_step_end(self, model: torch.nn.Module) -> None:
        torch._foreach_lerp_(list(self.average.parameters()), list(model.parameters()), 0.1)
        torch._foreach_mul_(list(model.parameters()), 0.99)
        self.updates += 1  # type: ignore[operator, assignment]

    def project(self, model: torch.nn.Module) -> None:
        torch._foreach_mul_(list(model.parameters()), 0.99)


@pytest.mark.usefixtures("poisoned")
def test_what_a_task_updates_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After steps that moved it, the last is left out: all that is trained is what it was before that step."""
    for method in ("setup", "train_step", "predict", "on_step_end", "project"):
        monkeypatch.setattr(Supervised, method, getattr(Teacher, method))
    run = (*QUICK, *LONG, f"trainer.max_steps={BAD[1] + 1}")
    skipped = last_checkpoint(start_run(tmp_path / "skipped", *run))
    with pytest.raises(SystemExit):
        start_run(tmp_path / "before", *run, f"process.stop_at_step={BAD[1]}")
    before = last_checkpoint(tmp_path / "before")
    assert (before["step"], skipped["step"]) == (BAD[1], BAD[1] + 1)
    moved = BAD[1] - len([b for b in BAD if b < BAD[1]])
    assert skipped["task"]["updates"] == skipped["task"]["begun"] == moved
    assert any(not torch.equal(skipped["task"][f"average.{name}"], value) for name, value in skipped["model"].items())
    for part in ("model", "task", "ema"):
        assert_equal(skipped[part], before[part], part)
    assert_equal(skipped["optimizer"]["state"], before["optimizer"]["state"])


@pytest.mark.slow
@needs("conf/model/resnet.yaml")
def test_batch_norm_forgets_a_skipped_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are NaN: the run goes on, with the statistics of before."""
    run = (*SMALL, "trainer.ema_decay=0.9", "model=resnet", "model.width=4", "model.blocks=[1]")
    TaskTests().test_a_skipped_step_changes_nothing(tmp_path, monkeypatch, run, 1)


@pytest.mark.usefixtures("poisoned")
def test_means_are_over_the_steps_that_were_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a loss whose name has a slash."""

    def losses(task: Any, model: torch.nn.Module, batch: Any) -> Any:
        output = model(batch["x"])
        values = task.criterion(output, batch)
        return {"loss": values, "aux/ones": torch.ones_like(values)}, output

    monkeypatch.setattr(Supervised, "losses", losses)
    monkeypatch.setattr(Supervised, "loss_names", ("aux/ones",))
    run = start_run(tmp_path, *QUICK, *LONG)
    assert set(values(run, "train/aux/ones")) == {1.0}


AT = 4  # the step that is skipped
RATED = (*QUICK, "optim.lr=0.01", "optim.schedule.warmup=0", "+optim.lr_factors={bias: 0.5}", "trainer.max_steps=10",
         "trainer.global_batch_size=12", "trainer.log_every=1", "trainer.save_every=2", "trainer.ema_decay=0.9",
         "trainer.non_finite=skip")  # fmt: skip


def rate(step: int) -> float:
    """Cosine decay to 0 after the last step, without a warm-up."""
    return 0.005 * (1 + math.cos(math.pi * step / 10))


@pytest.mark.one_quick
@pytest.mark.parametrize(("ranks", "precision"), [(1, "fp32"), (2, "fp16")])
def test_the_rate_goes_on_over_a_skipped_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, precision: str
) -> None:
    """Each rank's rates are those of the step's number, in a skipped step and in those behind it. Killed in the one
    behind it, so that it is taken again, and further on: the same bits."""
    run = (*RATED, f"hardware.precision={precision}", *(WAYS["2 ranks"] if ranks == 2 else ()))
    poison(monkeypatch, AT, ranks - 1)
    lean_step, used = lab.optimizer_step.lean_step, tmp_path / "used"

    def noted(optimizer: Any) -> None:
        with used.with_suffix(f".{os.environ.get('RANK', '0')}").open("a") as file:
            print(*sorted(float(group["lr"]) for group in optimizer.param_groups), file=file)
        lean_step(optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(lab.optimizer_step, "lean_step", noted)
        straight = start_run(tmp_path / "straight", *run)
    lines = [line for line in metrics(straight) if "train/lr" in line]
    assert [line["train/lr"] for line in lines] == pytest.approx([rate(step) for step in range(10)])
    assert AT in [step for step, line in enumerate(lines) if "train/skipped_steps" in line]
    for rank in range(ranks):
        rates = [[*map(float, line.split())] for line in used.with_suffix(f".{rank}").read_text().splitlines()]
        assert [(rates[0], rates[-1]) for rates in rates] == [
            (pytest.approx(rate(step) / 2), pytest.approx(rate(step))) for step in range(10)
        ]
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [AT + 1, AT + 3], *run), straight)


@pytest.mark.slow
def test_a_run_of_an_older_version_goes_on_by_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint holds a count without the skipped steps. The line is said once."""
    with pytest.raises(SystemExit):
        start_run(tmp_path, *RATED, "process.stop_at_step=6")
    payload = last_checkpoint(tmp_path)
    payload["schedule"] = {"updates": 4, "total_steps": 10}
    save_checkpoint(payload, tmp_path / "checkpoints/last_000000006.pt")
    with monkeypatch.context() as patch:
        raise_at_step(patch, 8, Killed)
        with pytest.raises((Killed, RunFailed)):
            resume_run(tmp_path)
    resume_run(tmp_path)
    line = "the learning rate continues at step 7 of the schedule, not 5 (2 skipped)"
    assert (tmp_path / "train.log").read_text().count(line) == 1
    assert values(tmp_path, "train/lr") == pytest.approx([rate(step) for step in range(10)])


def large(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As of an energy in another unit: its gradients are finite, and the sum of their squares is not."""
    return 1e25 * torch.nn.functional.cross_entropy(output, batch["y"].long(), reduction="none")


LARGE = r"^the norm of the gradients overflowed float32 within .*\(means on rank 0: loss 2.*e\+25.*weight is 0\."


@pytest.mark.one_quick
@pytest.mark.parametrize("more", [(), ("debug='nan'",), ("trainer.clip_norm=null",)])
def test_a_norm_beyond_float32_is_said_to_be_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(lab.losses.cross_entropy.CrossEntropy, "__call__", staticmethod(large))
    with pytest.raises(RunFailed, match=LARGE):
        start_run(tmp_path, *QUICK, *STEPS, *more)


def test_debug_nan_names_the_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loss that is finite, as are all outputs."""

    def rooted(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (0 * output.sum(1)).sqrt()

    monkeypatch.setattr(lab.losses.cross_entropy.CrossEntropy, "__call__", staticmethod(rooted))
    with pytest.raises(RunFailed, match=r"^the gradient of '\d\.\w+' is not finite, though .*debug=anomaly names it"):
        start_run(tmp_path, *QUICK, *STEPS, "debug='nan'")


@pytest.mark.one_quick
@pytest.mark.parametrize("first", [0, 3])
def test_a_run_that_leaves_out_its_steps_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Each interval between two logs of which all were left out; one that has left out all of them has failed, and
    fails again where it is resumed."""
    clip, calls = lab.optimizer_step.clip, [0]

    def clipped(gradients: list[torch.Tensor], limit: float | None) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > first:
            gradients[0].fill_(math.nan)
        return clip(gradients, limit)

    monkeypatch.setattr(lab.optimizer_step, "clip", clipped)
    run = (*QUICK, *STEPS, "trainer.non_finite=skip")
    if first:
        start_run(tmp_path, *run)
    else:
        for again in (lambda: start_run(tmp_path, *run), lambda: resume_run(tmp_path)):
            with pytest.raises(RunFailed, match=r"^all 6 steps were skipped, so nothing was trained: .*=stop"):
                again()
        assert status(tmp_path)["status"] == "failed"
    said = (tmp_path / "train.log").read_text()
    assert [f"all steps from {n} to {n + 2} were skipped" in said for n in (1, 4)] == [first == 0, True]
