"""Mixup (Zhang et al. 2018), a transform of whole batches as in lab.transforms.fields."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lab.transforms.fields import Batch, OnDevices, field_of
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count, Positive


class Mixup:
    """Mix the samples with ids 2i and 2i + 1, with a weight from Beta(alpha, alpha) for each pair.

    Every micro-batch must have an even size, so that pairs do not depend on ranks and micro-batches. They are random if
    data.order is. field: floating point. target: labels (B,) or (B, 1), or probabilities (B,
    num_classes); it becomes (B, num_classes) float32 probabilities, which lab.losses.cross_entropy accepts. Metrics
    that require labels cannot be computed from such batches.
    """

    random = True

    def __init__(self, field: str, target: str, num_classes: Count, alpha: Positive, seed: int) -> None:
        self._field, self._target, self._num_classes = field, target, num_classes
        self._quantiles, self._draws = OnDevices(_beta_quantiles(alpha)), SampleRNG(seed, "Mixup")

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the mixed batch. Raise ConfigError if fields or the batch size do not fit."""
        x, y = field_of(batch, self._field, "Mixup.field"), field_of(batch, self._target, "Mixup.target")
        if not x.is_floating_point():
            raise ConfigError(f"data.transforms: Mixup got {self._field!r} as {x.dtype}; put ToFloat before it")
        if len(x) % 2:
            raise ConfigError(
                f"data.transforms: Mixup mixes pairs, but got a micro-batch of {len(x)} samples: set "
                "trainer.global_batch_size to a multiple of 2 * micro-batches * ranks"
            )
        share = self._shares(sample_ids >> 1)
        partner = torch.arange(len(x), device=x.device) ^ 1
        targets = self._as_shares(y)
        return {**batch, self._field: _mix(x, partner, share), self._target: _mix(targets, partner, share)}

    def _as_shares(self, y: Tensor) -> Tensor:
        """Return (B, num_classes) float32. Values are not checked, because this would wait for the device."""
        if y.shape[1:] == (self._num_classes,) and self._num_classes > 1:
            return y.float()
        if y.is_floating_point() or y.shape[1:] not in ((), (1,)):
            raise ConfigError(
                f"data.transforms: Mixup.target={self._target!r} is {y.dtype} of shape {tuple(y.shape[1:])} per sample"
                f"; expected one label, or num_classes={self._num_classes} probabilities"
            )
        classes = torch.arange(self._num_classes, device=y.device)
        return (y.reshape(-1, 1).long() == classes).float()

    def _shares(self, pairs: Tensor) -> Tensor:
        """Return weights from Beta(alpha, alpha), (B,) float32, by its inverse distribution function. pairs: (B,)
        int64."""
        quantiles = self._quantiles.on(pairs.device)
        at = self._draws.uniform(pairs, 1)[:, 0] * (len(quantiles) - 1)
        low = at.long()
        return torch.lerp(quantiles[low], quantiles[low + 1], at - low)


def _mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    share = share.view(-1, *[1] * (x.ndim - 1)).to(x.dtype)
    return x * share + x[partner] * (1 - share)


def _beta_quantiles(alpha: float) -> Tensor:
    """Return (4097,) float32: quantiles of Beta(alpha, alpha) at equal steps of probability.

    If alpha < 1, substituting t = x ** alpha removes the pole of x ** (alpha - 1) * (1 - x) ** (alpha - 1) at 0. Values
    above 0.5 follow by symmetry. The first quantile is extrapolated: the true one, 0, would place 1 of 2048 weights far
    from all others if alpha is large.
    """
    if not alpha > 0:
        raise ConfigError(f"data.transforms: Mixup.alpha={alpha}: must be > 0")
    power = min(alpha, 1.0)
    t = np.linspace(0, 0.5**power, 65537)
    x = t ** (1 / power)
    density = (1 - x if alpha < 1 else 4 * x * (1 - x)) ** (alpha - 1)  # 4: otherwise it would be 0 if alpha is large
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    lower = np.interp(np.linspace(0, 1, 2049), mass / mass[-1], t) ** (1 / power)
    lower[0] = max(0.0, 2 * lower[1] - lower[2])
    return torch.from_numpy(np.concatenate([lower, 1 - lower[-2::-1]])).float()
