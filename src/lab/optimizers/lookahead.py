"""Lookahead (Zhang et al. 2019), which wraps another optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch.optim import Optimizer

from lab.optimizers.base import Wrapper, build, groups_of
from samebits.schema import Count, NotNegative, Rule
from samebits.shards import local_parts


class Lookahead(Wrapper):
    """`inner` updates the fast weights. After every k steps, slow += alpha * (fast - slow), and fast is set to slow.

    Evaluations use the fast weights, which are equal to the slow ones after every k-th step. inner: a class with its
    arguments (a partial). lr, weight_decay: used unless the partial sets its own. A resume with other values of k and
    alpha uses the new values.
    """

    uses_rng = False

    def __init__(
        self,
        params: Iterable[Any],
        inner: Callable[..., Optimizer],
        k: Count,
        alpha: Annotated[float, Rule(above=0, at_most=1)],
        lr: NotNegative,
        weight_decay: NotNegative,
    ) -> None:
        super().__init__([build(inner, groups_of(params), lr=lr, weight_decay=weight_decay)])
        self.k, self.alpha = k, alpha
        for group in self.param_groups:
            group["steps_ahead"] = 0  # steps since the fast weights were set to the slow ones

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the fast weights, and the slow ones in every k-th step."""
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        new = {p: p.clone() for group in moved for p in group if "slow" not in self.state.get(p, {})}
        loss = self.move(closure)
        for p, slow in new.items():
            self.state[p]["slow"] = slow
        for group in self.param_groups:
            group["steps_ahead"] = (group["steps_ahead"] + 1) % self.k
            fast = [p for p in group["params"] if "slow" in self.state.get(p, {})]
            if group["steps_ahead"] == 0 and fast:
                slow = local_parts([self.state[p]["slow"] for p in fast])
                torch._foreach_lerp_(slow, local_parts(fast), self.alpha)
                torch._foreach_copy_(local_parts(fast), slow)
        return loss
