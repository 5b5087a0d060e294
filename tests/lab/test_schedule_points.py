"""Points of schedules in epochs, steps and shares: the rates of torch's StepLR and MultiStepLR, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from hypothesis import given, strategies as st
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, StepLR

from lab.optim import Schedule, constants_in, schedule_change, unreached_points
from lab.schedules.constant import Constant, Epochs
from lab.schedules.plateau import Plateau
from lab.schedules.step import Step
from samebits.errors import ConfigError
from samebits.schema import parse_interval, parse_point, passed
from samebits.testing import assert_equal, last_checkpoint, metrics, resume_run, start_run, values

SAMPLES = 1297  # the digits' training rows
BATCH = 200
RUN = (
    *QUICK, "optim=sgd", "optim.lr=0.1", "optim.schedule.warmup=0", "optim.schedule.gamma=0.5", "trainer.log_every=1",
    f"trainer.global_batch_size={BATCH}",
)  # fmt: skip
MILESTONES = ("optim/schedule=step", "optim.schedule.milestones=[1ep,3ep,4ep]")
EVERY = ("optim/schedule=step_every", "optim.schedule.every=2ep")
MILESTONES_OF_TORCH = lambda optimizer: MultiStepLR(optimizer, [1, 3, 4], gamma=0.5)  # noqa: E731
EVERY_OF_TORCH = lambda optimizer: StepLR(optimizer, 2, gamma=0.5)  # noqa: E731


def plain(kind: Callable[[Any], LRScheduler], lengths: list[int]) -> Iterator[float]:
    """The rates of a plain loop, which calls the scheduler after each epoch. lengths: the steps of each epoch."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = kind(optimizer)
    for steps in lengths:
        for _ in range(steps):
            yield optimizer.param_groups[0]["lr"]
            optimizer.step()
        scheduler.step()


def with_epochs(factor: Any, steps: float, ahead: float = 0.0) -> Any:
    for one in constants_in(factor):
        object.__setattr__(one, "epochs", Epochs(steps, ahead))
    return factor


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("overrides", "kind"), [(MILESTONES, MILESTONES_OF_TORCH), (EVERY, EVERY_OF_TORCH)], ids=["milestones", "every"]
)
@pytest.mark.parametrize("drop_last", ["null", "true", "false"])
def test_a_run_has_the_rates_of_torch(tmp_path: Path, overrides: Any, kind: Any, drop_last: str) -> None:
    """With micro-batches, with an epoch that ends before its last batch, is filled up, or ends within a step (null:
    6.485 steps an epoch), and with a last epoch that is cut short."""
    run = start_run(
        tmp_path, *RUN, *overrides, "trainer.max_epochs=5.5", "trainer.eval_every=null", "hardware.micro_batch_size=64",
        *([] if drop_last == "null" else ["data/order=epochs", f"data.order.drop_last={drop_last}"]),
    )  # fmt: skip
    per_epoch = {"null": SAMPLES / BATCH, "true": SAMPLES // BATCH, "false": -(-SAMPLES // BATCH)}[drop_last]
    ends = [round(epoch * per_epoch) for epoch in (0, 1, 2, 3, 4, 5, 5.5)]
    rates = list(plain(kind, [b - a for a, b in pairwise(ends)]))
    assert len(set(rates)) > 2
    assert values(run, "train/lr") == pytest.approx(rates, rel=1e-12)


def test_a_drop_is_between_an_evaluation_and_the_next_step(tmp_path: Path) -> None:
    """An epoch ends at the same step for trainer.eval_every=1ep and for the schedule."""
    run = start_run(
        tmp_path, *RUN, *EVERY, "optim.schedule.every=1ep", "trainer.max_epochs=4", "trainer.eval_every=1ep"
    )
    lines = [line for line in metrics(run) if "train/lr" in line or "val/loss" in line]
    rates = {line["step"]: line["train/lr"] for line in lines if "train/lr" in line}
    evaluated = [line["step"] for line in lines if "val/loss" in line]
    dropped = [step for step in rates if step > 1 and rates[step] < rates[step - 1]]
    assert len(evaluated) == 4
    assert dropped == [step + 1 for step in evaluated[:-1]]


@pytest.mark.slow
def test_a_longer_run_keeps_its_drops(tmp_path: Path) -> None:
    """Resumed after three of six epochs, with drops and a warmup by epochs: bit for bit the run of six, no warning."""
    more = (*RUN, *MILESTONES, "optim.schedule.warmup=2ep", "trainer.eval_every=null")
    straight = start_run(tmp_path / "straight", *more, "trainer.max_epochs=6")
    run = start_run(tmp_path / "resumed", *more, "trainer.max_epochs=3")
    assert "schedule.milestones: 3ep is after step 19, but the run has only 19 steps, so it has no effect" in log(run)
    resume_run(run, trainer__max_epochs=6)
    assert values(run, "train/lr") == values(straight, "train/lr")
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(straight)["model"])
    assert "now has" not in log(run)
    assert "has no effect" not in log(straight)


def log(run: Path) -> str:
    return (run / "train.log").read_text()


def test_epochs_are_counted_in_samples_after_a_change_of_the_batch_size(tmp_path: Path) -> None:
    """A drop is at the step before which the number of samples is nearest to the end of an epoch."""
    run = start_run(tmp_path, *RUN, *MILESTONES, "trainer.max_epochs=2", "trainer.eval_every=null")
    resume_run(run, trainer__max_epochs=6, trainer__global_batch_size=100)
    lines = [line for line in metrics(run) if "train/lr" in line]
    drops = [before["train/epoch"] for before, line in pairwise(lines) if line["train/lr"] < before["train/lr"]]
    assert len(drops) == 3
    for epochs, milestone, batch in zip(drops, (1, 3, 4), (200, 100, 100)):
        assert abs(epochs - milestone) * SAMPLES <= batch / 2


@given(
    per_epoch=st.floats(0.6, 50), epochs=st.integers(1, 6), ahead=st.floats(-5, 5), total=st.integers(1, 300),
)  # fmt: skip
def test_every_is_a_milestone_at_each_multiple(per_epoch: float, epochs: int, ahead: float, total: int) -> None:
    every = with_epochs(Step(0.0, None, 0.5, f"{epochs}ep"), per_epoch, ahead)
    ends = [round(k * (epochs * per_epoch) + ahead) for k in range(1, total + 9)]
    for step in range(total):
        assert every(step, total) == 0.5 ** min(step + 1, sum(end <= step for end in ends))
        if ahead == 0 and epochs * per_epoch >= 1:
            assert every.drops(step, total) == passed(step, parse_interval(f"{epochs}ep", per_epoch))


@given(total=st.integers(1, 300), warmup=st.floats(0, 1), milestones=st.lists(st.floats(0, 1), max_size=3))
def test_shares_are_those_of_older_versions(total: int, warmup: float, milestones: list[float]) -> None:
    factor = with_epochs(Step(warmup, milestones, 0.1), 7.3)
    for step in range(total):
        rise = min(1.0, (step + 1) / max(1, round(warmup * total)))
        assert factor(step, total) == rise * 0.1 ** sum(step / total >= milestone for milestone in milestones)


def test_steps_are_steps_at_any_length() -> None:
    factor = Step("10st", ["20st", "30st"], 0.5)
    for total in (25, 40, 1000):
        assert [factor(step, total) for step in (0, 9, 19, 20, 29, 30)] == [0.1, 1, 1, 0.5, 0.5, 0.25]
    assert [Step(0, None, 0.5, "10st")(step, 7) for step in (0, 9, 10, 19, 20)] == [1, 1, 0.5, 0.5, 0.25]
    assert [Step(0, None, 0.5, 0.25)(step, 40) for step in (0, 9, 10, 19, 20, 39)] == [1, 1, 0.5, 0.5, 0.25, 0.125]
    assert [Step(0, [0.5, 0.75], 0.5)(step, 100) for step in (0, 49, 50, 74, 75, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert Constant("4st")(0, 100) == 0.25
    assert with_epochs(Plateau("2ep", 0.5, 1, 0.0, 0.0), 5)(0, 100) == 0.1


def test_points_that_cannot_be_are_refused() -> None:
    assert [parse_point(point) for point in (0.5, 0, "10ep", "0.5ep", "500st")] == [
        (0.5, ""), (0, ""), (10, "ep"), (0.5, "ep"), (500, "st"),
    ]  # fmt: skip
    for text in ("10", "ep", "0ep", "-1ep", "nanep", "infst", "1.5st", "10 epochs", "10sp", ""):
        with pytest.raises(ConfigError, match=r"^x: expected a share of all steps \(0\.5\), epochs \(10ep\) or steps"):
            parse_point(text, "x")
    for milestones, every in ((None, None), ([0.5], "1ep")):
        with pytest.raises(ConfigError, match="give one of them, and set the other to null"):
            Step(0.0, milestones, 0.5, every)
    with pytest.raises(ConfigError, match=r"Step\.milestones=1ep: set `epochs`"):
        Step(0.0, ["1ep"], 0.5)(0, 10)


def test_points_after_the_end_are_named() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    def lines(factor: Any, total: int) -> list[str]:
        return unreached_points(Schedule(optimizer, with_epochs(factor, 10), total))

    assert lines(Step("1ep", ["2ep", "39st", 1.0], 0.5), 40) == []
    assert lines(Step("4ep", [0.5], 0.5), 40) == []
    short = "but the run has only 40 steps, so"
    assert lines(Step("41st", ["3ep", "4ep"], 0.5), 40) == [
        f"optim.schedule.warmup: 41st is after step 41, {short} the peak rate is never reached",
        f"optim.schedule.milestones: 4ep is after step 40, {short} it has no effect",
    ]
    assert len(lines(Plateau("5ep", 0.5, 1, 0.0, 0.0), 40)) == 1


def test_a_schedule_by_epochs_does_not_depend_on_the_length() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for factor, moves in ((Step("1ep", ["2ep", "8ep"], 0.5), False), (Step(0.0, [0.5], 0.5), True)):
        line = schedule_change(Schedule(optimizer, with_epochs(factor, 10), 200), {"total_steps": 100}, 50)
        assert bool(line) is moves
