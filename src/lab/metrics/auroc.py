"""The exact area under the ROC curve, over all samples of all ranks (not a mean over batches)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from samebits.errors import ConfigError
from samebits.schema import Count
from samebits.world import World, to_cpu


class AUROC:
    """The probability that a sample of the class has a higher score than a sample of another class; ties count half.

    Two classes: output is (B, 2) logits, or one score per sample, (B,) or (B, 1), which is high for label 1. More
    classes: (B, C) logits; the result is the mean of the one-vs-rest AUROCs of the classes that have positives and
    negatives. batch["y"]: (B,) or (B, 1) integer labels. Memory: each rank stores the scores of its samples; `compute`
    gathers the scores of all ranks, one class at a time.
    """

    higher_is_better = True

    def __init__(self, num_classes: Count) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, output: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch. Raise ConfigError if the shapes or dtypes do not fit."""
        label = batch["y"]
        label = label[:, 0] if label.dim() == 2 and label.shape[1] == 1 else label
        binary = self.num_classes <= 2 and (output.dim() == 1 or output.shape[1:] == (1,))
        if label.is_floating_point() or label.dim() != 1 or not (binary or output.shape[1:] == (self.num_classes,)):
            raise ConfigError(
                f"AUROC of {self.num_classes} classes cannot compare an output of shape {tuple(output.shape)} with "
                f"batch['y'] of {label.dtype} and shape {tuple(label.shape)}: expected logits (B, num_classes) and "
                "integer labels (B,)"
            )
        wide = output.detach().to(torch.float32 if output.device.type == "mps" else torch.float64)
        if binary:
            wide = wide.reshape(-1, 1)
        elif self.num_classes == 2:
            wide = wide[:, 1:] - wide[:, :1]
        else:
            wide = wide.softmax(1)
        self.scores.append(wide)
        self.labels.append(label.long())

    def compute(self, world: World) -> float:
        """Return the AUROC over all ranks, NaN without samples. All ranks must call it, including ranks without
        samples."""
        first = 1 if self.num_classes <= 2 else 0  # with two classes both AUROCs are equal: use label 1
        classes = range(first, max(2, self.num_classes))
        empty = torch.zeros(0, dtype=torch.int64, device=world.device)
        labels = to_cpu(torch.cat(world.all_gather(torch.cat(self.labels) if self.labels else empty)))
        if labels.numel() and not 0 <= labels.min() <= labels.max() < max(2, self.num_classes):
            raise ConfigError(
                f"AUROC of {self.num_classes} classes: labels from {int(labels.min())} to {int(labels.max())}; set "
                "num_classes"
            )
        areas = []
        for column, number in enumerate(classes):
            local = torch.cat([scores[:, column] for scores in self.scores]) if self.scores else empty
            scores = torch.cat([part.double() for part in map(Tensor.cpu, world.all_gather(local))])
            areas.append(area(scores, labels == number))
        defined = [value for value in areas if value is not None]
        return sum(defined) / len(defined) if defined else float("nan")


def area(scores: Tensor, positive: Tensor) -> float | None:
    """Return the AUROC by rank sums (Mann & Whitney 1947), or None unless both labels occur. scores: (N,) float64;
    positive: (N,) bool."""
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        return None
    if scores.isnan().any():
        return float("nan")
    _, place, ties = scores.unique(return_inverse=True, return_counts=True)
    ranks = ties.cumsum(0).double() - (ties - 1) / 2  # tied scores get their mean rank
    return (ranks[place[positive]].sum().item() - count * (count + 1) / 2) / (count * others)
