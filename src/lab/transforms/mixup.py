"""Mixup (Zhang et al. 2018), a transform of whole batches; see lab.transforms.fields."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lab.transforms.fields import Batch, OnDevices
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count, Positive


class Mixup:
    """Mixes sample 2i with sample 2i + 1 of the global order, both with one weight drawn from Beta(alpha, alpha).

    Pairs do not depend on ranks or micro-batches, as every micro-batch must have an even size; they are random because
    the order is shuffled. target: labels (B,) or (B, 1), or probabilities (B, num_classes); becomes (B, num_classes)
    float32 probabilities, which cross-entropy accepts. Metrics that need labels cannot use such batches.
    """

    random = True

    def __init__(self, field: str, target: str, num_classes: Count, alpha: Positive, seed: int) -> None:
        if alpha <= 0:
            raise ConfigError(
                f"data.transforms: Mixup.alpha={alpha} must be above 0; leave the transform out for no mixing"
            )
        self._field, self._target, self._num_classes = field, target, num_classes
        self._quantiles, self._draws = OnDevices(_beta_quantiles(alpha)), SampleRNG(seed, "Mixup")

    def __call__(self, batch: Batch, numbers: Tensor) -> Batch:
        if missing := [field for field in (self._field, self._target) if field not in batch]:
            raise ConfigError(f"data.transforms: Mixup names the field {missing[0]!r}; the batch has {sorted(batch)}")
        x, y = batch[self._field], batch[self._target]
        if not x.is_floating_point():
            raise ConfigError(f"data.transforms: Mixup got {self._field!r} as {x.dtype}; put ToFloat before it")
        if len(x) % 2:
            raise ConfigError(
                f"data.transforms: Mixup pairs neighbours and got a micro-batch of {len(x)} samples; make "
                "trainer.global_batch_size divisible by twice the number of micro-batches and processes"
            )
        share = self._shares(numbers >> 1)
        partner = torch.arange(len(x), device=x.device) ^ 1
        targets = self._as_shares(y)
        return {**batch, self._field: _mix(x, partner, share), self._target: _mix(targets, partner, share)}

    def _as_shares(self, y: Tensor) -> Tensor:
        """Returns (B, num_classes) float32. Values are not checked: that would make the host wait for the device."""
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
        """pairs: (B,) int64 -> (B,) float32 weights from Beta(alpha, alpha), by inverting its distribution function."""
        quantiles = self._quantiles.on(pairs.device)
        at = self._draws.uniform(pairs, 1)[:, 0] * (len(quantiles) - 1)
        low = at.long()
        return torch.lerp(quantiles[low], quantiles[low + 1], at - low)


def _mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    share = share.view(-1, *[1] * (x.ndim - 1)).to(x.dtype)
    return x * share + x[partner] * (1 - share)


def _beta_quantiles(alpha: float) -> Tensor:
    """Returns (4097,) float32: quantiles of Beta(alpha, alpha) at equal steps of probability.

    Substituting t = x ** alpha removes the pole of x ** (alpha - 1) * (1 - x) ** (alpha - 1) at 0; x > 0.5 by symmetry.
    """
    t = np.linspace(0, 0.5**alpha, 65537)
    density = (1 - t ** (1 / alpha)) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    lower = np.interp(np.linspace(0, 1, 2049), mass / mass[-1], t) ** (1 / alpha)
    return torch.from_numpy(np.concatenate([lower, 1 - lower[-2::-1]])).float()
