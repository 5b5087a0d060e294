"""Schedule-free around another optimizer: the paper's algorithm, and what it says is scored is what is scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from common import needs
from optimizer_base import gradients, optimizer_of, small
from shipped import Shipped

from lab import build, load_run
from lab.optimizers.base import Wrapper
from samebits.errors import ConfigError
from samebits.testing import SMALL, assert_equal, compose, last_checkpoint, start_run

pytestmark = needs("conf/optim/schedule_free.yaml")
INNER = ("optim=schedule_free", "optim.beta=0.8", "optim.weight_decay=0")


def test_it_is_the_papers_algorithm() -> None:
    """Defazio et al. 2024, equations 3 to 5 around plain gradient descent, with the squares of the rates as weights."""
    inner = "optim.inner={_target_: torch.optim.SGD, _partial_: true}"
    model = small()
    optimizer = optimizer_of(model, *INNER, "~optim.inner", f"+{inner}")
    x = [p.detach().clone() for p in model.parameters()]
    z, weights = [p.clone() for p in x], 0.0
    for step, rate in enumerate((0.05, 0.1, 0.1, 0.05, 0.2)):  # the highest rate so far counts
        for group in optimizer.param_groups:
            group["lr"] = rate
        weight = max((0.05, 0.1, 0.1, 0.05, 0.2)[: step + 1]) ** 2
        weights += weight
        for i, (p, gradient) in enumerate(zip(model.parameters(), gradients(model, step))):
            torch.testing.assert_close(p.detach(), 0.2 * z[i] + 0.8 * x[i], rtol=1e-10, atol=1e-12)
            p.grad = gradient.clone()
            z[i] -= rate * gradient
            x[i] += weight / weights * (z[i] - x[i])
        optimizer.step()
    for p, wanted in zip(model.parameters(), x):
        torch.testing.assert_close(optimizer.eval_weight(p), wanted, rtol=1e-10, atol=1e-12)
        assert not torch.equal(p, wanted)


class TestScheduleFree(Shipped):
    averages = True

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("optim=schedule_free", "model.hidden=[16]", "optim.lr=1e-2")


@pytest.mark.slow
def test_what_is_scored_is_the_mean(tmp_path: Path) -> None:
    """In the checkpoint, and for whoever loads the run."""
    run = (*SMALL, "optim=schedule_free", "model.hidden=[16]", "trainer.max_steps=6")
    folder = start_run(tmp_path / "run", *run)
    payload = last_checkpoint(folder)
    assert_equal(dict(load_run(folder).model.state_dict()), payload["ema"])
    for number, name in enumerate(payload["parameter_names"]):
        weight, z = payload["model"][name], payload["optimizer"]["state"][number]["z"]
        torch.testing.assert_close(payload["ema"][name], torch.lerp(weight, z, 1 - 1 / 0.9))
        assert not torch.equal(payload["ema"][name], weight)


@pytest.mark.slow
def test_one_rule_makes_the_average() -> None:
    line = r"^trainer\.ema_decay=0\.9: optim\._target_=lab\.optimizers\.schedule_free\.ScheduleFree averages the w"
    with pytest.raises(ConfigError, match=line):
        build(compose("optim=schedule_free", "trainer.ema_decay=0.9"))
    with pytest.raises(ConfigError, match=r"^optim\.beta: must be > 0, got 0"):
        optimizer_of(small(), *INNER, "optim.beta=0")
    with pytest.raises(ConfigError, match=r"^optim: Wrapper contains ScheduleFree, whose average would not be eval"):
        Wrapper([optimizer_of(small(), *INNER)])
