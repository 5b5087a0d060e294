"""task=byol: a teacher that is an average of the student, and part of the state."""

from __future__ import annotations

import copy

import pytest
import torch
from shipped import Shipped
from torch import nn

from lab.tasks.byol import BYOL
from lab.transforms.fields import RandomFlip
from samebits.testing import TaskTests


class TestByol(Shipped):
    overfits_to = 0.3
    test_debug_overfit = TaskTests.test_debug_overfit

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return (
            "task=byol", "model.num_outputs=16", "model.hidden=[16]", "task.projector.hidden=[16]",
            "task.predictor.hidden=[16]", "task.projector.num_outputs=8", "task.decay=0.9", "optim.lr=3e-3",
        )  # fmt: skip


def small(**options: object) -> tuple[BYOL, nn.Module]:
    torch.manual_seed(0)
    parts = {"projector": nn.Linear(3, 2), "predictor": nn.Linear(2, 2), "decay": 0.75, "fields": ["x", "x"]}
    task, model = BYOL(**{**parts, "augment": {}, "metrics": {}, **options}), nn.Linear(4, 3)  # type: ignore[arg-type]
    task.setup(model)
    return task, model


def test_the_teacher_is_an_average_of_the_student() -> None:
    task, model = small()
    before = copy.deepcopy(task.teacher)
    assert not any(p.requires_grad for p in task.teacher.parameters())
    with torch.no_grad():
        for p in (*model.parameters(), *task.projector.parameters()):
            p += 1
        task.on_step_end(model)
    for new, old in zip(task.teacher.parameters(), before.parameters()):
        torch.testing.assert_close(new, old + 0.25)


def test_each_view_is_compared_with_the_teachers_other() -> None:
    task, model = small(fields=["a", "b"])
    batch = {"a": torch.randn(5, 4), "b": torch.randn(5, 4), "sample_id": torch.arange(5)}
    losses, seen = task.losses(model, batch)
    torch.testing.assert_close(seen, model(batch["a"]))
    unit = nn.functional.normalize
    wanted = 0
    for one, other in (("a", "b"), ("b", "a")):
        guess, target = task.predictor(task.projector(model(batch[one]))), task.teacher(batch[other])
        wanted += (unit(guess) - unit(target)).square().sum(1)
    torch.testing.assert_close(losses, wanted)
    losses.sum().backward()
    assert all(p.grad is None for p in task.teacher.parameters())
    assert all(p.grad is not None for p in (*model.parameters(), *task.projector.parameters()))


def test_the_views_differ_and_depend_on_the_sample_alone() -> None:
    task, _ = small(augment={"flip": RandomFlip("x", -1, 0)})
    batch = {"x": torch.arange(4.0).expand(64, 4), "sample_id": torch.arange(100, 164)}
    one, two = task.view(batch, 0), task.view(batch, 1)
    assert 10 < (one != two).any(1).sum() < 54
    half = {name: value[32:] for name, value in batch.items()}
    assert torch.equal(task.view(half, 1), two[32:])


def test_a_prediction_is_the_representation() -> None:
    task, model = small()
    assert torch.equal(task.predict(model, {"x": (x := torch.rand(3, 4))}), model(x))
