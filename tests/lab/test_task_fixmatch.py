"""task=fixmatch: few labels, and many samples without."""

from __future__ import annotations

from typing import Any

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
    model, task = nn.Linear(4, 3), FixMatch(0, 0.4, 0.5, {})
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


def test_means_are_over_the_samples_of_a_kind_in_the_step() -> None:
    """Whatever their shares, and however the step is split; a certainty of exactly the threshold is enough."""
    torch.manual_seed(0)
    model, of = nn.Linear(4, 3).double(), torch.tensor([0, 1, 0, 0, 1, 1, 1, 1, 1, 1])
    batch = {"x": 3 * torch.randn(10, 4).double(), "strong": torch.randn(10, 4).double(), "set": of}
    batch |= {"y": torch.where(of == 0, 2, -1), "is_real": torch.arange(10) < 9}
    certainty, guess = model(batch["x"]).float().softmax(1).max(1)
    threshold = certainty[1].item()
    known, others = [0, 2, 3], [1, 4, 5, 6, 7, 8]
    taught = F.cross_entropy(model(batch["strong"]), guess, reduction="none") * (certainty >= threshold)
    wanted = F.cross_entropy(model(batch["x"][known]), batch["y"][known]), taught[others].mean()
    for sizes in ([10], [3, 3, 4], [1] * 10):
        parts = [dict(zip(batch, values)) for values in zip(*(value.split(sizes) for value in batch.values()))]
        task = FixMatch(0, threshold, 0.5, {})
        kept: Any = task.train_step(0, iter(parts), lambda _, held: held)  # type: ignore[arg-type,return-value]
        losses = [task.losses(model, part)[0] for part in kept]
        for name, value in zip(("supervised", "guessed"), wanted):
            mean = torch.cat([one[name] for one in losses])[:9].mean()
            torch.testing.assert_close(mean, value, rtol=1e-6, atol=0, check_dtype=False)


def test_other_data_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"task=fixmatch: .*`set` and `strong`.*data=mixed"):
        FixMatch(0, 0.95, 1.0, {}).losses(nn.Linear(4, 3), {"x": torch.randn(2, 4), "y": torch.zeros(2)})
