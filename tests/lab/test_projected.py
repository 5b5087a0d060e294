"""What a task does to the weights after an update is in all that is scored, saved and loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs
from torch import Tensor, nn

import lab.tasks.supervised
from lab import load_run
from lab.tasks.supervised import Supervised
from samebits.testing import SMALL, last_checkpoint, start_run
from samebits.testing.processes import slow


class Halved(Supervised):
    """The weights are multiplied by a half in `on_step_end`."""

    __module__ = "lab.tasks.supervised"

    def setup(self, model: nn.Module) -> None:
        self.first = nn.ParameterList(p.detach().clone() for p in model.parameters()).requires_grad_(False)

    def on_step_end(self, model: nn.Module) -> None:
        torch._foreach_mul_(list(model.parameters()), 0.5)


class Late(Supervised):
    """The weights are cut in `on_step_end` from step 3 on, in one of several ways."""

    __module__ = "lab.tasks.supervised"
    uses_rng = False
    way = "list"

    def setup(self, model: nn.Module) -> None:
        self.teacher = None if self.way != "teacher" else copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def on_step_end(self, model: nn.Module) -> None:
        self.steps: Tensor
        self.steps.add_(1)
        if self.teacher is not None:
            torch._foreach_lerp_(list(self.teacher.parameters()), list(model.parameters()), 0.1)
        elif self.steps >= 3:
            WRITES[self.way](next(model.parameters()))


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "view": lambda p: p[0].clamp_(-1, 1),
    "data": lambda p: p.data.clamp_(-1, 1),
    "set": lambda p: setattr(p, "data", p.data * 0.5),
    "out": lambda p: torch.mul(p, 0.5, out=p),
    "list": lambda p: torch._foreach_mul_([p], 0.5),
}


class Clipped(Supervised):
    """All weights are above zero, which no mean of them with the first weights is."""

    __module__ = "lab.tasks.supervised"
    uses_rng = False

    def project(self, model: nn.Module) -> None:
        for p in model.parameters():
            p.clamp_(min=1e-3)


class Both(Late):
    """What it changes in `on_step_end` is in the average too, by `project`."""

    __module__ = "lab.tasks.supervised"
    project = Clipped.project


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs may name them."""
    for kind in (Halved, Late, Clipped, Both):
        monkeypatch.setattr(lab.tasks.supervised, kind.__name__, kind, raising=False)


def task(kind: type[Supervised]) -> str:
    return f"task._target_=lab.tasks.supervised.{kind.__name__}"


@pytest.mark.parametrize("rules", [slow(1), 2])
def test_the_average_is_of_the_weights_as_the_task_leaves_them(tmp_path: Path, rules: int) -> None:
    """A run that began by the rules before keeps to them: its average took the weights as the optimizer left them."""
    options = ("trainer.max_steps=1", "trainer.ema_decay=0.75", f"rules={rules}")
    held = last_checkpoint(start_run(tmp_path, *SMALL, task(Halved), *options))
    for k, (name, value) in enumerate(held["model"].items()):
        moved = value if rules == 2 else 2 * value
        wanted = held["task"][f"first.{k}"].lerp(moved, 0.25)
        torch.testing.assert_close(held["ema"][name], wanted, rtol=1e-6, atol=1e-7)


WAYS: dict[str, Any] = {
    "decay": ("trainer.ema_decay=0.9",),
    "skip": ("trainer.ema_decay=0.9", "trainer.non_finite=skip", "hardware.precision=fp16"),
    "schedule-free": ("optim=schedule_free",),
    "lookahead": ("optim=lookahead",),
    "fsdp": ("trainer=fsdp", "hardware.num_procs=2", "trainer.ema_decay=0.9"),
}


@pytest.mark.parametrize(
    "way",
    [
        "decay",
        slow("skip"),
        pytest.param("schedule-free", marks=(needs("conf/optim/schedule_free.yaml"), pytest.mark.slow)),
        pytest.param("lookahead", marks=(needs("conf/optim/lookahead.yaml"), pytest.mark.slow)),
        slow("fsdp"),
    ],
)
def test_all_that_is_scored_is_projected(tmp_path: Path, way: str) -> None:
    run = start_run(tmp_path, *SMALL, task(Clipped), *WAYS[way])
    for value in load_run(run)[0].state_dict().values():
        assert value.min() >= 0.99e-3
    held = last_checkpoint(run) if way != "fsdp" else {}
    for part in ("model", "ema"):
        for value in (held.get(part) or {}).values():
            assert value.min() >= 0.99e-3


@pytest.mark.parametrize("share", [None, slow(0.25)])
def test_an_average_that_takes_nothing_is_not_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    """As of a mean of the last steps, before these begin."""
    monkeypatch.setattr(Clipped, "averaging_factor", lambda self, step: share, raising=False)
    run = start_run(tmp_path / "run", *SMALL, task(Clipped), "trainer.max_steps=2")
    lowest = min(float(value.min()) for value in last_checkpoint(run)["ema"].values())
    assert (lowest < 0) is (share is None)


def told(run: Path) -> list[str]:
    return [line for line in (run / "train.log").read_text().splitlines() if "changes the model's weights" in line]


@pytest.mark.parametrize("way", ["view", "data", *map(slow, ("set", "out", "list"))])
def test_an_update_that_the_average_does_not_get_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It begins late."""
    monkeypatch.setattr(Late, "way", way)
    (line,) = told(start_run(tmp_path, *SMALL, task(Late), "trainer.max_steps=9", "trainer.ema_decay=0.9"))
    assert "task: Late.on_step_end changes the model's weights (0.weight)" in line
    assert "change them in `project`" in line


@pytest.mark.parametrize(
    ("kind", "way", "decay"), [(Late, "data", "null"), (Late, "teacher", "0.9"), slow(Both, "data", "0.9")]
)
def test_an_update_is_not_told_of_where_nothing_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Supervised], way: str, decay: str
) -> None:
    monkeypatch.setattr(Late, "way", way)
    assert not told(start_run(tmp_path, *SMALL, task(kind), "trainer.max_steps=9", f"trainer.ema_decay={decay}"))


@pytest.mark.slow
def test_a_write_to_a_shard_is_told_of(tmp_path: Path) -> None:
    """By rank 0, in a process of its own."""
    run = start_run(tmp_path, *SMALL, task(Late), *WAYS["fsdp"], "trainer.max_steps=4")
    assert len(told(run)) == 1
