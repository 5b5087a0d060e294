"""Shared by the tests of optimizers: a small network, gradients that are the same for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import QUICK
from torch import Tensor, nn

from lab.builders import make_optimizer
from lab.config import Config
from lab.optim import trainable
from samebits.testing import compose


def small() -> nn.Module:
    """A convolution, a vector and matrices, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.LayerNorm(4), nn.Linear(4, 5), nn.Linear(5, 4, bias=False)).double()


def optimizer_of(model: nn.Module, *overrides: str) -> Any:
    config = Config.of(compose(*QUICK, "trainer.max_steps=1", *overrides))
    return make_optimizer(config, trainable([("", model)]), "the model")


def gradients(model: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) + 0.1 for p in model.parameters()]


def assert_moves_as(
    optimizer: torch.optim.Optimizer, model: nn.Module, plain: Callable[[int, Tensor, Tensor, dict[str, Any]], Tensor],
    rates: list[float],
) -> None:  # fmt: skip
    """Each weight is what plain(its number, value, gradient, what it holds between steps) returns, for each of the
    learning rates: what is written in the paper, for one tensor."""
    values, held = [p.detach().clone() for p in model.parameters()], [{"lr": 0.0} for _ in model.parameters()]
    begun = [value.clone() for value in values]
    for step, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for i, (p, gradient) in enumerate(zip(model.parameters(), gradients(model, step))):
            held[i]["lr"], p.grad = lr, gradient.clone()
            values[i] = plain(i, values[i], gradient, held[i])
        optimizer.step()
        for p, value in zip(model.parameters(), values):
            torch.testing.assert_close(p.detach(), value, rtol=1e-9, atol=1e-11, msg=f"step {step}")
    assert not any(map(torch.equal, begun, values))
