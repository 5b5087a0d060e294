"""Base classes for metrics that are not means over samples: F1, AUROC, intersection over union, confusion matrices.

A metric is one of these:

    a function (output, batch) -> (B,)      the score is the mean over samples, e.g. accuracy.py
    reset(), update(output, batch)          an object whose compute(world) returns the score, e.g. SummedMetric below;
      and compute(world)                    an optional write(path) writes a file into the run directory (confusion.py)
    a torchmetrics.Metric                   is used as it is, with update(output, batch["y"])
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from math import isclose, isnan, prod
from typing import Any

import torch
from torch import Tensor

from lab.transforms.spec import described
from samebits.errors import ConfigError
from samebits.world import World, to_cpu

Score = float | Mapping[str, float]  # a mapping is logged as val/<metric>/<name>


class SummedMetric:
    """The base class of scores that are computed from a sum over all samples, such as a table of counts. The score is
    exact for any number of ranks. shape, dtype: of the sum. Sums of floats need dtype=torch.float64. They are added on
    the CPU if the device is mps, which has no float64."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.shape, self.dtype = shape, dtype
        self.reset()

    def count(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the contribution of this batch to the sum, with the shape of the metric."""
        raise NotImplementedError

    def score(self, total: Tensor) -> Score:
        """Return the score. total: the sum over all samples of all ranks, on the CPU."""
        raise NotImplementedError

    def reset(self) -> None:
        """Set the sum to 0."""
        self.total: Tensor | int = 0

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch, in the dtype of the sum: float32 cannot count beyond 2**24. Raise ConfigError if the shape of
        the counts differs, or if the sum cannot hold their dtype."""
        added = self.count(output, batch)
        if added.shape != self.shape or torch.promote_types(added.dtype, self.dtype) != self.dtype:
            raise ConfigError(
                f"{type(self).__name__}.count returned {described(added.shape, added.dtype)}, but the sum is "
                f"{described(self.shape, self.dtype)}: give super().__init__ this shape, and dtype=torch.float64 for "
                "floats"
            )
        if self._on_cpu(added.device):
            added = to_cpu(added)
        self.total = added.to(self.dtype) + self.total

    def compute(self, world: World) -> Score:
        """Return the score of all ranks. All ranks must call it, including ranks without samples."""
        device = torch.device("cpu") if self._on_cpu(world.device) else world.device
        total = torch.zeros(self.shape, dtype=self.dtype, device=device) + self.total
        return self.score(to_cpu(world.all_reduce_sum(total)))

    def _on_cpu(self, device: torch.device) -> bool:
        return device.type == "mps" and self.dtype == torch.float64


class Torchmetric:
    """Adapt a torchmetrics.Metric or MetricCollection to the methods that the loop calls. Update with (output,
    batch["y"])."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def reset(self) -> None:
        """Reset the metric."""
        self.metric.reset()

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch."""
        self.metric.to(output.device).update(output, batch["y"])

    def compute(self, world: World) -> Any:
        """Return the score of all ranks. All ranks must call it."""
        for metric in self.metric.to(world.device).modules():
            if hasattr(metric, "dist_sync_fn"):  # torchmetrics' default fails on ranks without samples, see `gathered`
                metric.dist_sync_fn = lambda value, group=None: gathered(value, world)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The ``compute`` method")  # a rank without samples
            return self.metric.compute()


def gathered(value: Tensor, world: World) -> list[Tensor]:
    """Return the state of each rank. A rank without samples may have a state of a wrong dtype and shape; it is replaced
    by an empty tensor, or expanded if it is a number."""
    parts = world.all_gather(value)
    right = max((part for part in parts if part.numel()), key=Tensor.dim, default=value)  # has the dtype and the shape
    parts = [part if part.dim() else part.expand_as(right) for part in parts]
    return [part if part.numel() else right[:0] for part in parts] if right.dim() else parts


def scores_of(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yield (name, number) of a metric's result: a number, a tensor or list (names are indices), or a mapping of
    these. An array with one element is a number."""
    if getattr(value, "ndim", False) and prod(value.shape) == 1:
        value = value.reshape(())
    dtype = str(getattr(value, "dtype", ""))
    if isinstance(value, (list, tuple)) or getattr(value, "ndim", False):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from scores_of(inner, f"{name}/{key}")
    elif hasattr(value, "__float__") and "complex" not in dtype:
        yield name, float(value)
    else:
        kind = f"{type(value).__name__}{dtype and f' of {dtype}'}"
        raise ConfigError(f"task.metrics.{name}: compute returned a {kind}: return a number, a tensor or a mapping")


def same_on_all_ranks(scores: dict[str, float], world: World, check: bool = True) -> dict[str, float]:
    """Return rank 0's scores, so that all ranks decide alike. check: raise ConfigError on all ranks if their scores
    differ by more than rounding. NaN is a rank that leaves the score to rank 0."""
    told = world.gather_object(scores) if check else [scores] * world.is_main
    lines = [
        f"task.metrics.{name}: compute returned {told[0][name]:.6g} on rank 0 and {score:.6g} on rank {rank}: "
        "combine the samples of all ranks, by SummedMetric or world.all_gather"
        for rank, other in enumerate(told)
        for name, score in other.items()
        if name in told[0] and not (isnan(score) or isclose(told[0][name], score, rel_tol=1e-4, abs_tol=1e-6))
    ]
    first, lines = world.broadcast_object([told[:1], lines[:1]])
    if lines:
        raise ConfigError(lines[0])
    return {**scores, **first[0]}


def as_metric(metric: Any) -> Any:
    """Return the metric, adapted if it is from torchmetrics."""
    torchmetrics = sys.modules.get("torchmetrics")  # imported by now if `metric` is one of its metrics
    kinds = (torchmetrics.Metric, torchmetrics.MetricCollection) if torchmetrics else ()
    return Torchmetric(metric) if isinstance(metric, kinds) else metric
