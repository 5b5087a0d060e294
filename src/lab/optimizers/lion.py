"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lab.optimizers.base import loss_of, moved_by, state_of
from samebits.schema import NotNegative, Share
from samebits.shards import local_parts
from samebits.steps import restore_if


class Lion(Optimizer):
    """Update with the sign of an interpolation between momentum and gradient. The state is one number per weight.

    Each update of a weight is +lr or -lr, so the paper uses a 3 to 10 times smaller lr than AdamW's, and a weight_decay
    that is larger by the same factor. betas: (interpolation of the update, decay of the momentum).
    """

    uses_rng = False
    takes_found_inf = True
    found_inf: Tensor | None = None
    takes_rate_tensor = True

    def __init__(
        self, params: Iterable[Any], lr: NotNegative, betas: tuple[Share, Share], weight_decay: NotNegative
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": list(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the weights; see Wrapper for `closure`."""
        loss = loss_of(closure)
        for group, moved in moved_by(self):
            weights, gradients = local_parts(moved), local_parts([p.grad for p in moved])
            momenta = local_parts(state_of(self, moved, "momentum"))
            with restore_if(self.found_inf, [*weights, *momenta]):
                descend(weights, gradients, momenta, group["lr"], group["betas"], group["weight_decay"])
        return loss


def descend(
    weights: list[Tensor], gradients: list[Tensor], momenta: list[Tensor],
    lr: float, betas: Sequence[float], weight_decay: float,
) -> None:  # fmt: skip
    """Run one step in place."""
    directions = torch._foreach_mul(momenta, betas[0])
    torch._foreach_add_(directions, gradients, alpha=1 - betas[0])
    torch._foreach_sign_(directions)
    torch._foreach_mul_(directions, lr)
    torch._foreach_mul_(weights, 1 - lr * weight_decay)
    torch._foreach_sub_(weights, directions)
    torch._foreach_mul_(momenta, betas[1])
    torch._foreach_add_(momenta, gradients, alpha=1 - betas[1])
