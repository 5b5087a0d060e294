"""task=sam: the paper's algorithm, from the loop's parts."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest
import torch
from common import needs
from shipped import Stateless
from torch import nn
from torch.nn import functional as F

from samebits.testing import SMALL, TaskTests, last_checkpoint, metrics, start_run

pytestmark = needs("data/digits.h5")
RUN = ("task=sam", "model.hidden=[32]", "optim.lr=3e-3", "task.rho=0.1")


class TestSAM(Stateless):
    test_compiling_changes_nothing = TaskTests.test_compiling_changes_nothing  # two passes a step
    logged = ("loss", "sharpness")

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


def climb(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rho: float) -> float:
    """One step of the paper's algorithm 1 with a plain gradient step of 0.1. Returns the sharpness."""
    here = F.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(here, [*model.parameters()])
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    above = {n: p + rho * g / norm for (n, p), g in zip(model.named_parameters(), gradients)}
    there = F.cross_entropy(torch.func.functional_call(model, above, (x,)), y)
    for p, g in zip(model.parameters(), torch.autograd.grad(there, [*above.values()])):
        p.data -= 0.1 * g
    return there.item() - here.item()


def test_it_is_the_paper_s_algorithm(tmp_path: Path) -> None:
    run = (*SMALL, *RUN, *plain.PLAIN, "trainer.log_every=1")
    model = plain.first_weights(*run)
    sharpness = [climb(model, x, y, 0.1) for x, y in plain.batches()]
    folder = start_run(tmp_path, *run)
    plain.assert_trained(folder, model)
    assert [line["train/sharpness"] for line in metrics(folder)] == pytest.approx(sharpness, rel=1e-3)
    assert min(sharpness) > 0


@pytest.mark.slow
def test_once_a_step(tmp_path: Path) -> None:
    """Two passes, but one step of the schedule, of the average and of what is logged; fp16's skipped steps too."""
    more = ("hardware.precision=fp16", "trainer.ema_decay=0.5", "trainer.max_steps=3", "trainer.keep_best=0")
    state = last_checkpoint(start_run(tmp_path, *SMALL, *RUN, *more))
    assert state["step"] == 3
    assert state["scaler"]["_growth_tracker"] == 3
