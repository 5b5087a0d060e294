"""task=dino: the paper's algorithm; the centre is that of all ranks' samples."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import plain
import pytest
import torch
from common import needs
from shipped import Shipped
from torch import Tensor, nn
from torch.nn import functional as F

from lab import build
from lab.tasks.dino import DINO, Head
from samebits.testing import SMALL, compose, last_checkpoint, start_run

pytestmark = needs("data/digits.h5")
RUN = ("task=dino", "model.num_outputs=16", "model.hidden=[32]", "task.head.hidden=32", "task.head.size=64",
       "task.head.prototypes=24", "task.momentum=0.9", "optim.lr=3e-3")  # fmt: skip


class TestDINO(Shipped):
    loss_names = ("entropy",)

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


def algorithm_1(student: nn.Module, steps: int) -> tuple[nn.Module, Tensor]:
    """The paper's pseudo-code for two equal views, with plain gradient steps of 0.1. Returns (teacher, centre)."""
    teacher, center = copy.deepcopy(student), torch.zeros(24)
    for step, (x, _) in enumerate(plain.batches(steps)):
        with torch.no_grad():
            t = teacher(x)
        s = student(x)
        loss = -(((t - center) / 0.04).softmax(1) * (s / 0.1).log_softmax(1)).sum(1).mean()
        for p, g in zip(student.parameters(), torch.autograd.grad(loss, [*student.parameters()])):
            p.data -= 0.1 * g
        momentum = 1 - 0.1 * (math.cos(math.pi * step / steps) + 1) / 2
        for mean, p in zip(teacher.parameters(), student.parameters()):
            mean.data.copy_(momentum * mean + (1 - momentum) * p)
        center = 0.9 * center + 0.1 * t.mean(0)
    return teacher, center


def test_it_is_the_paper_s_algorithm(tmp_path: Path) -> None:
    run = (*SMALL, *RUN, *plain.PLAIN, "task.views=2", "~task.augment.crop", "trainer.log_every=1")
    parts = build(compose(*run))
    assert isinstance(parts.task, DINO)
    student = nn.Sequential(parts.model, parts.task.head)
    parts.close()
    teacher, center = algorithm_1(student, 5)
    folder = start_run(tmp_path, *run)
    plain.assert_trained(folder, parts.model)
    held = last_checkpoint(folder)["task"]
    torch.testing.assert_close(held["center"], center, rtol=1e-3, atol=1e-6)
    for name, value in teacher.state_dict().items():
        torch.testing.assert_close(held[f"teacher.{name}"], value, rtol=1e-4, atol=1e-6)
    assert held.keys().isdisjoint({"seen"})


def test_pairs_of_different_views() -> None:
    """Each of the teacher's two with all but itself; each view of a sample has random numbers of its own, because equal
    ones would crop the same place."""
    torch.manual_seed(0)

    class Shift:
        random = True

        def __call__(self, batch: dict[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
            return batch | {"x": batch["x"] + numbers[:, None]}

    head = Head(3, 4, 2, 5)
    task = DINO(head, 0.9, 0.1, 0.04, 0.9, 4, {"shift": Shift()}, {"shift": Shift()}, {})  # type: ignore[arg-type]
    model = nn.Linear(4, 3)
    task.setup(model)
    task.center.copy_(torch.randn(5) / 10)
    batch = {"x": torch.randn(6, 4), "sample_id": torch.arange(6)}
    losses, seen = task.eval().losses(model, batch)
    shifted = [batch["x"] + (4 * batch["sample_id"] + k)[:, None] for k in range(4)]
    torch.testing.assert_close(seen, model(shifted[0]))
    logits = [head(model(x)) for x in shifted]
    wanted = 0
    for i in range(2):
        taught = ((logits[i] - task.center) / 0.04).softmax(1)
        wanted += sum(F.cross_entropy(logits[j] / 0.1, taught, reduction="none") for j in range(4) if j != i) / 6
    torch.testing.assert_close(losses["loss"], wanted)
    losses["loss"].sum().backward()
    assert all(p.grad is None for p in task.teacher.parameters())
    assert not task.seen.any()  # an evaluation moves no centre


def test_padding_moves_no_center() -> None:
    """The rows that fill an epoch's last batch (sample id -1) are in no loss, and in no mean of the teacher's
    outputs."""
    torch.manual_seed(0)
    head = Head(3, 4, 2, 5)
    task, model = DINO(head, 0.9, 0.1, 0.04, 0.9, 2, {}, {}, {}), nn.Linear(4, 3)
    task.setup(model)
    batch = {"x": torch.randn(6, 4), "sample_id": torch.tensor([8, 9, 10, 11, -1, -1])}
    task.losses(model, batch)
    wanted = 2 * head(model(batch["x"][:4])).sum(0)  # two equal views
    torch.testing.assert_close(task.seen, torch.cat([wanted, torch.tensor([8.0])]))
