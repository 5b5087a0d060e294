"""Evaluations that draw random numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK
from torch import Tensor, nn

import lab.models.mlp
from lab.restore import score_checkpoint
from samebits.testing import start_run, values


class Noisy(nn.Module):
    """Draws from each global generator, in training and in evaluations."""

    __module__ = "lab.models.mlp"

    def __init__(self, input_shape: Any, num_outputs: int, hidden: Any, dropout: float) -> None:
        super().__init__()
        self.head = nn.Linear(64, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) + torch.randn_like(x.flatten(1))) * (random.random() + float(np.random.rand()))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lab.models.mlp, "Noisy", Noisy, raising=False)
    common = (*QUICK, "model._target_=lab.models.mlp.Noisy", "trainer.max_steps=8", "optim.lr=0")
    return lambda name, *more: start_run(tmp_path / name, *common, *more)


def training(run: Path) -> list[float]:
    return values(run, "train/loss")


@pytest.mark.parametrize("more", [(), ("trainer=ddp", "hardware.num_procs=2")], ids=["1 rank", "2 ranks"])
def test_evaluations_do_not_change_the_training(run: Any, more: tuple[str, ...]) -> None:
    often = run("often", "trainer.eval_every=2", "trainer.log_every=1", *more)
    seldom = run("seldom", "trainer.eval_every=8", "trainer.log_every=1", *more)
    assert training(often) == training(seldom)
    scores = values(often, "val/loss")
    assert len(set(scores)) == 1, "each evaluation draws the same numbers: at lr=0 all scores are equal"
    assert scores[0] == values(seldom, "val/loss")[0]


def test_an_old_run_keeps_its_numbers(run: Any) -> None:
    often = run("often", "trainer.eval_every=2", "trainer.log_every=1", "rules=3")
    seldom = run("seldom", "trainer.eval_every=8", "trainer.log_every=1", "rules=3")
    assert training(often) != training(seldom)


def test_evaluate_draws_what_the_run_drew(run: Any) -> None:
    done = run("done", "trainer.eval_every=8")
    assert score_checkpoint(done, "val", [])["loss"] == values(done, "val/loss")[0]
