"""SOAP (Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lab.optimizers.base import loss_of, moved_by
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegative, Positive, Share
from samebits.shards import is_dtensor

Bases = list[Tensor | None]  # eigenvectors for each dimension; None: not rotated


class SOAP(Optimizer):
    """AdamW in the eigenbasis of Shampoo's preconditioner: of G G^T and G^T G for a matrix, of each dimension for a
    convolution.

    One-dimensional parameters and dimensions larger than max_size are not rotated, so plain AdamW is used. As in the
    authors' code, the first step does not change the weights: it only computes the first basis, so that no gradient is
    rotated by a basis that was computed from it. basis_every: steps between updates of the basis, each by one power
    iteration and a QR decomposition. The authors' code also sorts the basis by its eigenvalues before each update;
    algorithm 4 does not, so the weights differ. On a GPU only the first step waits for the device, in
    torch.linalg.eigh. Raise ConfigError if parameters are sharded.
    """

    uses_rng = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: NotNegative,
        betas: tuple[Share, Share],
        eps: Positive,
        weight_decay: NotNegative,
        basis_every: Count,
        max_size: Count,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": list(betas), "eps": eps, "weight_decay": weight_decay})
        self.basis_every, self.max_size = basis_every, max_size
        if any(is_dtensor(p) for group in self.param_groups for p in group["params"]):
            raise ConfigError("optim: SOAP requires whole matrices, but trainer=fsdp shards them - use trainer=ddp")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the weights, then the preconditioner."""
        loss = loss_of(closure)
        for group, moved in moved_by(self):
            if begun := [p for p in moved if self.state[p]]:
                self._descend(begun, group)
            for p in moved:
                self._precondition(p, group["betas"][1])
        return loss

    def _descend(self, params: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), lr, states = group["betas"], group["lr"], [self.state[p] for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        bases = [[state.get(f"basis_{d}") for d in range(p.dim())] for p, state in zip(params, states)]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        turned = [into(gradient, basis) for gradient, basis in zip(gradients, bases)]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, turned, turned, 1 - beta2)
        directions = [into(mean, basis) for mean, basis in zip(means, bases)]
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, group["eps"])
        scaled = torch._foreach_div(directions, scales)  # not in place: without a basis a direction is its mean
        directions = [into(one, basis, side=1) for one, basis in zip(scaled, bases)]  # rotated back
        for state in states:
            state["step"] += 1
        rates = [lr * (1 - beta2 ** s["step"]) ** 0.5 / (1 - beta1 ** s["step"]) for s in states]
        torch._foreach_mul_(directions, rates)
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(params, directions)

    def _precondition(self, p: Tensor, beta2: float) -> None:
        """Update the average of G G^T of each dimension; every basis_every steps, update its eigenvectors."""
        state, gradient = self.state[p], p.grad
        assert gradient is not None
        first = not state
        if first:
            state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        for d, size in enumerate(p.shape if p.dim() > 1 else ()):
            if not 1 < size <= self.max_size:
                continue
            rows = gradient.movedim(d, 0).flatten(1)
            outer = rows @ rows.T
            if first:
                state[f"outer_{d}"] = (1 - beta2) * outer
                state[f"basis_{d}"] = torch.linalg.eigh(outer).eigenvectors.flip(1).contiguous()  # largest first
            else:
                state[f"outer_{d}"].lerp_(outer, 1 - beta2)
                if state["step"] % self.basis_every == 0:
                    # contiguous, as after a resume, because the layout affects the rounding of products
                    state[f"basis_{d}"] = torch.linalg.qr(state[f"outer_{d}"] @ state[f"basis_{d}"]).Q.contiguous()


def into(value: Tensor, bases: Bases, side: int = 0) -> Tensor:
    """Return the value rotated into the bases, for a matrix Q_L^T value Q_R. Each product removes the first dimension
    and appends the new one as the last."""
    for basis in bases:
        value = value.movedim(0, -1) if basis is None else torch.tensordot(value, basis, ([0], [side]))
    return value
