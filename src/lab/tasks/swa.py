"""Stochastic weight averaging (Izmailov et al. 2018): the mean of weights along the last part of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from samebits.schema import Count, Share


class SWA(Supervised):
    """Evaluated, predicted with and exported is the mean of the weights after every `every` steps, from the share
    `start` of training on. Its BatchNorm statistics are those of `statistics` training batches. Before: the weights."""

    def __init__(
        self,
        criterion: Callable[[Any, Batch], Any],
        metrics: Mapping[str, Metric],
        start: Share,
        every: Count,
        statistics: Count,
    ) -> None:
        super().__init__(criterion, metrics)
        self.start, self.every, self.bn_update_batches = start, every, statistics

    def averaging_factor(self, step: int) -> float | None:
        number, left = divmod(step + 1 - round(self.start * self.run.total_steps), self.every)
        return 1.0 if number < 0 else 1 / (number + 1) if left == 0 else None
