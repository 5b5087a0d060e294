"""Sharpness-aware minimization (SAM, Foret et al. 2021): find weights whose whole neighborhood has a low loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lab.tasks.base import Batch, Metric, OptimizerStep
from lab.tasks.supervised import Supervised
from samebits.schema import Positive
from samebits.shards import global_norm, local_parts


class SAM(Supervised):
    """Update the weights w with the gradient at w + rho * g / |g|, where g is the gradient at w.

    A step costs two forward and backward passes. "sharpness" is logged: the loss at w + rho * g / |g| minus the loss at
    w. Both passes update BatchNorm's running statistics, and each draws its own dropout.
    """

    def __init__(self, criterion: Callable[[Any, Batch], Any], metrics: Mapping[str, Metric], rho: Positive) -> None:
        super().__init__(criterion, metrics)
        self.rho = rho

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Compute the gradient at w, then at the shifted weights; update w with the second one."""
        micro_batches = list(batches)
        at_weights = optimizer_step.gradients("", micro_batches)
        with torch.no_grad():
            moved = [p for p in optimizer_step.parameters("") if p.grad is not None]
            gradients, weights = [p.grad for p in moved if p.grad is not None], local_parts(moved)
            before = torch._foreach_mul(weights, 1.0)  # copied back, because a subtraction would round
            scale = self.rho / (global_norm(gradients) + 1e-12)
            torch._foreach_add_(weights, torch._foreach_mul(local_parts(gradients), scale))
        at_shifted = optimizer_step.gradients("", micro_batches)
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        optimizer_step.update("")
        return at_weights | {"sharpness": at_shifted["loss"] - at_weights["loss"]}
