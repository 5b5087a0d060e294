"""Metrics that are not means over samples: F1, areas under curves, intersection over union, confusion matrices.

A metric is a function (output, batch) -> (B,), whose mean is taken, or an object with reset(), update(output, batch)
and compute(world), as below; an optional write(path) writes a file into the run directory (confusion.py). A
torchmetrics.Metric works unchanged, updated with (output, batch["y"]).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from samebits.world import World, on_host

Score = float | Mapping[str, float]  # several are logged as val/<metric>/<name>


class SummedMetric:
    """A score computed from a sum over all samples, such as a table of counts: exact for any number of ranks."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.shape, self.dtype = shape, dtype
        self.reset()

    def count(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns this batch's addend of the total, with this metric's shape and dtype."""
        raise NotImplementedError

    def score(self, total: Tensor) -> Score:
        """total: over all samples of all ranks, on the CPU."""
        raise NotImplementedError

    def reset(self) -> None:
        self.total: Tensor | int = 0

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.total = self.count(output, batch) + self.total

    def compute(self, world: World) -> Score:
        """All ranks must call this, those without a sample too."""
        total = torch.zeros(self.shape, dtype=self.dtype, device=world.device) + self.total
        return self.score(on_host(world.all_reduce_sum(total)))


class Torchmetric:
    """A torchmetrics.Metric, or MetricCollection, as the loop calls metrics: updated with (output, batch["y"])."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def reset(self) -> None:
        self.metric.reset()

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.metric.to(output.device).update(output, batch["y"])

    def compute(self, world: World) -> Score:
        for one in self.metric.to(world.device).modules():
            if hasattr(one, "dist_sync_fn"):  # torchmetrics' own fails for a rank without samples: see gathered
                one.dist_sync_fn = lambda value, group=None: gathered(value, world)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The ``compute`` method")  # a rank without samples
            value = self.metric.compute()
        scores = dict(flat(value))
        return scores[""] if list(scores) == [""] else scores


def gathered(value: Tensor, world: World) -> list[Tensor]:
    """All-gathers a state; that of a rank without samples, of unknown dtype and shape, is replaced by an empty one."""
    parts = world.all_gather(value)
    known = next((part for part in parts if part.numel()), value)
    return [part if part.numel() else known[:0] for part in parts] if known.dim() else parts


def flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """(name, number) of a metric's result: a number, a tensor or list (names are indices), or a mapping of these."""
    if isinstance(value, (list, tuple)) or (isinstance(value, Tensor) and value.dim()):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}/{key}" if name else str(key))
    else:
        yield name, float(value)


def as_metric(metric: Any) -> Any:
    torchmetrics = sys.modules.get("torchmetrics")  # imported by now, if this is one of its
    kinds = (torchmetrics.Metric, torchmetrics.MetricCollection) if torchmetrics else ()
    return Torchmetric(metric) if isinstance(metric, kinds) else metric
