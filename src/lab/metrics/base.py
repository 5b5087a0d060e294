"""Scores that are no means over samples: F1, areas under curves, intersection over union, confusion matrices.

A metric is a function (output, batch) -> (B,), whose mean is taken, or an object with reset(), update(output, batch)
and compute(world), as below. A torchmetrics.Metric is used as it is, updated with (output, batch["y"]).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.ranks.distributed import World, all_sum

Score = float | Mapping[str, float]  # several are logged as val/<metric>/<name>


class SummedMetric:
    """A score that follows from a sum over all samples, such as a table of counts: exact for any number of ranks."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.shape, self.dtype = shape, dtype
        self.reset()

    def count(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """What the samples of this batch add to the total, of this metric's shape and dtype."""
        raise NotImplementedError

    def score(self, total: Tensor) -> Score:
        """total: over all samples of all ranks, on the CPU."""
        raise NotImplementedError

    def reset(self) -> None:
        self.total: Tensor | int = 0

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.total = self.count(output, batch) + self.total

    def compute(self, world: World) -> Score:
        """All ranks call this; one that had no sample, too."""
        total = torch.zeros(self.shape, dtype=self.dtype, device=world.device) + self.total
        return self.score(all_sum(total, world).cpu())


class Torchmetric:
    """A torchmetrics.Metric as the loop calls metrics; it brings its state together over the ranks by itself."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def reset(self) -> None:
        self.metric.reset()

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.metric.to(output.device).update(output, batch["y"])

    def compute(self, world: World) -> Score:
        value = self.metric.to(world.device).compute()
        if isinstance(value, Mapping):
            return {str(name): float(one) for name, one in value.items()}
        if isinstance(value, Tensor) and value.dim():
            return {str(index): float(one) for index, one in enumerate(value.flatten())}
        return float(value)


def as_metric(metric: Any) -> Any:
    torchmetrics = sys.modules.get("torchmetrics")  # imported by now, if this is one of its
    return Torchmetric(metric) if torchmetrics and isinstance(metric, torchmetrics.Metric) else metric
