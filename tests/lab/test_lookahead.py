"""Lookahead around another optimizer."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from common import QUICK, needs
from optimizer_base import gradients, optimizer_of, small
from torch import nn

from samebits.testing import assert_equal, scores, start_run, values

pytestmark = needs("conf/optim/lookahead.yaml")
INNER = ("optim=lookahead", "optim.k=3", "optim.alpha=0.3", "optim.weight_decay=0.2")


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)
    for p, gradient in zip(model.parameters(), gradients(model, step)):
        p.grad = gradient
    optimizer.step()


def test_it_is_the_papers_algorithm() -> None:
    """Zhang et al. 2019, algorithm 1, around AdamW, whose rate a schedule moves: bit for bit."""
    mine, theirs = small(), small()
    optimizer, inner = optimizer_of(mine, *INNER), optimizer_of(theirs, "optim=adamw", "optim.weight_decay=0.2")
    slow = [p.detach().clone() for p in theirs.parameters()]
    for step in range(8):
        for model, one in ((mine, optimizer), (theirs, inner)):
            moved(model, one, step, lr=0.1 / (step + 1))
        if (step + 1) % 3 == 0:
            for phi, p in zip(slow, theirs.parameters()):
                phi += 0.3 * (p.detach() - phi)
                p.data.copy_(phi)
        for p, wanted in zip(mine.parameters(), theirs.parameters()):
            torch.testing.assert_close(p, wanted, rtol=1e-12, atol=1e-14)


@needs("src/lab/optimizers/by_shape.py")
@pytest.mark.slow
def test_its_state_goes_on_in_another() -> None:
    """Of the inner optimizer and of its own, at a step that k does not divide; around two optimizers in one, too."""
    shape = (
        "optim.inner={_target_: lab.optimizers.by_shape.ByShape, _partial_: true, rest_names: [], "
        "matrices: {_target_: torch.optim.SGD, _partial_: true, momentum: 0.9}, "
        "rest: {_target_: torch.optim.AdamW, _partial_: true}}"
    )
    for more in ((), ("~optim.inner", f"+{shape}")):
        models = [small(), small()]
        one, other = (optimizer_of(model, *INNER, *more) for model in models)
        for step in range(4):
            moved(models[0], one, step, 0.1)
        models[1].load_state_dict(models[0].state_dict())
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        for step in range(4, 8):
            moved(models[0], one, step, 0.05), moved(models[1], other, step, 0.05)
        assert_equal(models[0].state_dict(), models[1].state_dict())
        assert_equal(one.state_dict(), other.state_dict())


@pytest.mark.slow
def test_shards_move_as_whole_weights(tmp_path: Path) -> None:
    common = (*QUICK, *INNER, "trainer.max_steps=8", "trainer.global_batch_size=24", "trainer.log_every=1")
    one = start_run(tmp_path / "one", *common)
    two = start_run(tmp_path / "two", *common, "trainer=fsdp", "hardware.num_procs=2")
    assert values(two, "train/loss") == pytest.approx(values(one, "train/loss"), rel=1e-4)
    assert scores(two) == pytest.approx(scores(one), rel=1e-3)
