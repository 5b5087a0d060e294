"""Mixup (Zhang et al. 2018), a transform of whole batches; see lab.transforms.fields."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.config.schema import Count, Positive
from engine.data.counter import Draws
from engine.errors import ConfigError
from lab.transforms.fields import Batch


class Mixup:
    """Neighbours in the stream are mixed: sample 2i with 2i + 1, both with one share drawn from Beta(alpha, alpha).

    The pair does not depend on how the global batch is split, as long as every micro-batch has an even size, which is
    checked; partners are random because the order is. `target`, class numbers (B,) or (B, 1) or shares
    (B, num_classes) such as one-hot rows, becomes (B, num_classes) float32 shares, which cross-entropy accepts. Metrics
    that compare with class numbers cannot be taken from such batches.
    """

    random = True

    def __init__(self, field: str, target: str, num_classes: Count, alpha: Positive, seed: int) -> None:
        if alpha <= 0:
            raise ConfigError(
                f"data.transforms: Mixup.alpha={alpha} must be above 0; leave the transform out for no mixing"
            )
        self._field, self._target, self._num_classes = field, target, num_classes
        self._quantiles, self._draws = _beta_quantiles(alpha), Draws(seed, "Mixup")

    def __call__(self, batch: Batch, numbers: Tensor) -> Batch:
        if missing := [field for field in (self._field, self._target) if field not in batch]:
            raise ConfigError(f"data.transforms: Mixup names the field {missing[0]!r}; the batch has {sorted(batch)}")
        x, y = batch[self._field], batch[self._target]
        if len(x) % 2:
            raise ConfigError(
                f"data.transforms: Mixup pairs neighbours and got a micro-batch of {len(x)} samples; make "
                "trainer.global_batch_size divisible by twice the number of micro-batches and processes"
            )
        if self._quantiles.device != x.device:
            self._quantiles = self._quantiles.to(x.device)
        share = self._shares(numbers >> 1)
        partner = torch.arange(len(x), device=x.device) ^ 1
        targets = self._as_shares(y)
        return {**batch, self._field: _mix(x, partner, share), self._target: _mix(targets, partner, share)}

    def _as_shares(self, y: Tensor) -> Tensor:
        """(B, num_classes) float32. No look at the values: that would wait for the device."""
        if y.shape[1:] == (self._num_classes,) and self._num_classes > 1:
            return y.float()
        if y.is_floating_point() or y.shape[1:] not in ((), (1,)):
            raise ConfigError(
                f"data.transforms: Mixup.target={self._target!r} is {y.dtype} of shape {tuple(y.shape[1:])} a sample; "
                f"give one class number, or num_classes={self._num_classes} shares"
            )
        classes = torch.arange(self._num_classes, device=y.device)
        return (y.reshape(-1, 1).long() == classes).float()

    def _shares(self, pairs: Tensor) -> Tensor:
        """(B,) float32 from Beta(alpha, alpha), by its quantile function."""
        at = self._draws.uniform(pairs, 1)[:, 0] * (len(self._quantiles) - 1)
        low = at.long()
        return torch.lerp(self._quantiles[low], self._quantiles[low + 1], at - low)


def _mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    share = share.view(-1, *[1] * (x.ndim - 1)).to(x.dtype)
    return x * share + x[partner] * (1 - share)


def _beta_quantiles(alpha: float) -> Tensor:
    """(4097,) float32: quantiles of Beta(alpha, alpha) at equal steps of probability.

    In t = x ** alpha the density x ** (alpha - 1) * (1 - x) ** (alpha - 1) has no pole; the upper half is a mirror.
    """
    t = np.linspace(0, 0.5**alpha, 65537)
    density = (1 - t ** (1 / alpha)) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    lower = np.interp(np.linspace(0, 1, 2049), mass / mass[-1], t) ** (1 / alpha)
    return torch.from_numpy(np.concatenate([lower, 1 - lower[-2::-1]])).float()
