"""Stochastic weight averaging (SWA, Izmailov et al. 2018): the mean of the weights over the last part of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from samebits.schema import Count, Share


class SWA(Supervised):
    """Evaluate, predict and export use the mean of the weights, sampled every `every` steps.

    start: fraction of the training steps after which the mean begins; before it, the current weights are used.
    statistics: number of training batches, of the size of evaluation batches, from which the BatchNorm statistics of
    the mean are recomputed.
    """

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
        """Return 1 before `start`, then 1 / (k + 1) for the k-th sampled weights, otherwise None."""
        number, left = divmod(step + 1 - round(self.start * self.run.total_steps), self.every)
        return 1.0 if number < 0 else 1 / (number + 1) if left == 0 else None
