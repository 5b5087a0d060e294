"""task=fixmatch: few labels, and many samples without."""

from __future__ import annotations

import pytest
import torch
from shipped import Shipped
from torch import nn
from torch.nn import functional as F

from lab.tasks.fixmatch import FixMatch
from samebits.errors import ConfigError


class TestFixMatch(Shipped):
    loss_names = ("supervised", "guessed", "sure")
    monitor = "supervised"  # what the guesses add begins when the model is sure

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("experiment=fixmatch", "model=mlp", "model.hidden=[32]", "optim.lr=3e-3", "task.threshold=0.3")


def test_the_losses_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    model, task = nn.Linear(4, 3), FixMatch(0, 3.0, 0.4, 0.5, {})
    of = torch.tensor([0, 1, 1, 1, 1, 0, 1, 1])
    batch = {"x": 3 * torch.randn(8, 4), "strong": torch.randn(8, 4), "y": torch.where(of == 0, 2, -1), "set": of}
    losses, output = task.losses(model, batch)
    told = F.cross_entropy(model(batch["x"][of == 0]), batch["y"][of == 0])
    certainty, guess = model(batch["x"][of == 1]).softmax(1).max(1)
    taught = F.cross_entropy(model(batch["strong"][of == 1]), guess, reduction="none") * (certainty > 0.4)
    torch.testing.assert_close(output, model(batch["x"]))
    torch.testing.assert_close(losses["loss"].mean(), told + 0.5 * taught.mean())
    torch.testing.assert_close(losses["supervised"].mean(), told)
    torch.testing.assert_close(losses["guessed"].mean(), taught.mean())
    torch.testing.assert_close(losses["sure"].mean(), (certainty > 0.4).float().mean())
    only = dict(
        batch, strong=torch.where(of[:, None] == 0, torch.nan, batch["strong"])
    )  # no labelled sample is read there
    torch.testing.assert_close(task.losses(model, only)[0]["loss"], losses["loss"])
    gradient = torch.autograd.grad(losses["guessed"].sum(), model.weight)[0]
    assert gradient.abs().sum() > 0


def test_other_data_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"task=fixmatch: .*`set` and `strong`.*data=mixed"):
        FixMatch(0, 7.0, 0.95, 1.0, {}).losses(nn.Linear(4, 3), {"x": torch.randn(2, 4), "y": torch.zeros(2)})
