"""Schedule-free training (Defazio et al. 2024), which wraps another optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.optimizers.base import Wrapper, build, groups_of
from samebits.schema import NotNegative, Rule


class ScheduleFree(Wrapper):
    """`inner` updates z with the gradient at y = (1 - beta) z + beta x, where x is the weighted mean of all z.

    The model's weights are y during training; evaluations, export and load_run use x. The weights of the mean are the
    square of the largest learning rate so far. inner: a class with its arguments (a partial); in the paper AdamW with
    betas [0, 0.999]. lr, weight_decay: used unless the partial sets its own. `inner` decays z, as the authors' wrapper
    of other optimizers does; their AdamW decays z by a multiple of y. Use a schedule that is constant after its warmup.
    BatchNorm's statistics are computed with y.
    """

    uses_rng = False

    def __init__(
        self,
        params: Iterable[Any],
        inner: Callable[..., Optimizer],
        beta: Annotated[float, Rule(above=0, at_most=1)],  # x is computed from y and z
        lr: NotNegative,
        weight_decay: NotNegative,
    ) -> None:
        super().__init__([build(inner, groups_of(params), lr=lr, weight_decay=weight_decay)])
        self.beta = beta
        for group in self.param_groups:
            group["highest_rate"] = group["sum_of_weights"] = 0.0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update z, x and y."""
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        z = {p: self.state[p]["z"] if "z" in self.state.get(p, {}) else p.clone() for group in moved for p in group}
        x = {p: self.mean(p, z[p]) for p in z}
        for p, value in z.items():
            p.copy_(value)
        loss = self.move(closure)
        for group, params in zip(self.param_groups, moved):
            group["highest_rate"] = max(group["highest_rate"], float(group["lr"]))
            weight = group["highest_rate"] ** 2
            group["sum_of_weights"] += weight
            share = weight / group["sum_of_weights"] if weight else 0.0
            for p in params:
                self.state[p]["z"] = z[p].copy_(p)
                p.lerp_(x[p].lerp_(z[p], share), self.beta)
        return loss

    def eval_weight(self, p: nn.Parameter) -> Tensor:
        """Return x for the weight y = p."""
        return self.mean(p, self.state[p]["z"]) if "z" in self.state.get(p, {}) else p

    def mean(self, y: Tensor, z: Tensor) -> Tensor:
        """Return x as a new tensor."""
        return torch.lerp(y, z, 1 - 1 / self.beta)
