"""Muon (Jordan et al. 2024, github.com/KellerJordan/Muon). Matrices of the same shape are updated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lab.optimizers.base import loss_of, moved_by, state_of
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegative, Share
from samebits.shards import is_dtensor, local_parts
from samebits.steps import restore_if

A, B, C = 3.4445, -4.7750, 2.0315  # coefficients of the quintic, chosen for a steep slope at 0
HALF = {"cuda": torch.bfloat16}  # float32 on other devices, because many CPUs are 20 times slower in bfloat16
RATIOS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,  # Liu et al. 2025
}


class Muon(Optimizer):
    """Update each matrix by lr times its orthogonalized momentum, a matrix whose singular values are near 1.

    It computes the same as torch.optim.Muon, but with twenty kernels per shape, not per matrix. ns_steps:
    Newton-Schulz iterations. adjust_lr_fn: factor of lr for a matrix (rows, columns): "original" is sqrt(max(1, rows /
    columns)), "match_rms_adamw" is 0.2 * sqrt(max(rows, columns)), for lr and weight_decay of AdamW (Liu et al. 2025).
    Raise ConfigError if a parameter is not a matrix.
    """

    uses_rng = False
    takes_found_inf = True
    found_inf: Tensor | None = None
    takes_rate_tensor = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: NotNegative,
        weight_decay: NotNegative,
        momentum: Share,
        nesterov: bool,
        adjust_lr_fn: str,
        ns_steps: Count = 5,
    ) -> None:
        if adjust_lr_fn not in RATIOS:
            raise ConfigError(f"optim.matrices.adjust_lr_fn={adjust_lr_fn}: must be one of {', '.join(RATIOS)}")
        values = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, {**values, "adjust_lr_fn": adjust_lr_fn, "ns_steps": ns_steps})
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.dim() != 2:
                raise ConfigError(f"optim: Muon requires matrices, but a parameter has the shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the weights; see Wrapper for `closure`."""
        loss = loss_of(closure)
        for group, moved in moved_by(self):
            momenta = state_of(self, moved, "momentum_buffer")
            with restore_if(self.found_inf, [*moved, *momenta]):
                self._move(moved, momenta, group)
        return loss

    def _move(self, moved: list[Any], momenta: list[Tensor], group: dict[str, Any]) -> None:
        gradients, lr, share = [p.grad for p in moved], group["lr"], group["momentum"]
        torch._foreach_lerp_(local_parts(momenta), local_parts(gradients), 1 - share)
        torch._foreach_mul_(local_parts(moved), 1 - lr * group["weight_decay"])
        for members in by_shape(moved):
            weights, given, means = ([values[i] for i in members] for values in (moved, gradients, momenta))
            rate = lr * RATIOS[group["adjust_lr_fn"]](*weights[0].shape)
            if is_dtensor(weights[0]):  # sharded: torch gathers it
                one = given[0].lerp(means[0], share) if group["nesterov"] else means[0]
                weights[0].sub_(orthogonal(one, group["ns_steps"]).to(weights[0].dtype) * rate)
            else:
                towards = torch._foreach_lerp(given, means, share) if group["nesterov"] else means
                steps = orthogonal(torch.stack(list(towards)), group["ns_steps"]).to(weights[0].dtype) * rate
                torch._foreach_sub_(weights, steps.unbind())


def by_shape(matrices: list[Tensor]) -> list[list[int]]:
    """Return the indices of the matrices, grouped by shape, device and dtype."""
    found: dict[Any, list[int]] = {}
    for number, one in enumerate(matrices):
        key = number if is_dtensor(one) else (one.shape, one.device, one.dtype)
        found.setdefault(key, []).append(number)
    return [*found.values()]


def orthogonal(x: Tensor, steps: int) -> Tensor:
    """Return approximately U V^T of x = U S V^T, (..., rows, columns). After five steps a singular value is between
    0.68 and 1.21; it is less if that of x is below 0.15 % of x's norm."""
    x, tall = x.to(HALF.get(x.device.type, torch.float32)), x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    add: Callable[..., Tensor] = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(steps):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
