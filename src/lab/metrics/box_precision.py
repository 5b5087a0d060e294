"""Average precision of detected boxes (AP, mAP), over all samples of all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.errors import ConfigError
from samebits.schema import Count, Share
from samebits.world import World, to_cpu

Columns = tuple[Tensor, ...]
RECALLS = torch.from_numpy(np.linspace(0, 1, 101))  # COCO's numbers; torch.linspace rounds some of them differently


class BoxPrecision:
    """The mean over classes and overlaps of the average precision, as COCO computes it for all areas.

    output: {"boxes": (B, N, 4) as x1, y1, x2, y2, "scores": (B, N), "labels": (B, N) integers}; the label -1 marks
    padding. batch["boxes"]: (B, M, 4), batch["labels"]: (B, M), -1 for padding. overlaps: a hit has at least this
    intersection over union. For COCO's mean use [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95].

    In each sample the boxes of a class are matched in the order of their scores, each with the free target of the
    largest overlap. All boxes count; COCO's code uses the best 100 of a class in each sample. Precision is interpolated
    at 101 recalls. Boxes with equal scores are counted together, so the result does not depend on the order of the
    samples. Classes without targets are left out. NaN without any target, and if a score is NaN or a box is not finite.
    Memory: each rank stores the scores and hits of its boxes; `compute` gathers them.
    """

    higher_is_better = True

    def __init__(self, num_classes: Count, overlaps: Sequence[Share] = (0.5,)) -> None:
        if not overlaps:
            raise ConfigError("BoxPrecision: overlaps is empty; give at least one, such as [0.5]")
        self.num_classes, self.overlaps = num_classes, torch.tensor(list(overlaps), dtype=torch.float64)
        self.reset()

    def reset(self) -> None:
        """Remove all boxes."""
        self.detections: list[Columns] = []
        self.targets = torch.zeros(self.num_classes, dtype=torch.int64)

    def update(self, output: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
        """Add a batch. Raise ConfigError if the shapes or labels do not fit."""
        predicted = [to_cpu(output[name].detach()) for name in ("boxes", "labels", "scores")]
        target = [to_cpu(batch[name]) for name in ("boxes", "labels")]
        for name, (boxes, labels, *scores) in (("output", predicted), ("batch", target)):
            shape = tuple(labels.shape)
            if labels.dim() != 2 or boxes.shape != (*shape, 4) or any(column.shape != shape for column in scores):
                raise ConfigError(
                    f"BoxPrecision: boxes of shape {tuple(boxes.shape)} and labels of shape {shape} in the {name}; "
                    "expected (B, N, 4) and (B, N), in the output with scores (B, N)"
                )
            if labels.is_floating_point() or (
                labels.numel() and not -1 <= labels.min() <= labels.max() < self.num_classes
            ):
                raise ConfigError(
                    f"BoxPrecision of {self.num_classes} classes: labels in the {name} are not integers from -1 to "
                    f"{self.num_classes - 1}; set num_classes"
                )
        for boxes, labels, scores, true_boxes, true_labels in zip(*predicted, *target, strict=True):
            self.targets += torch.bincount(true_labels[true_labels >= 0].long(), minlength=self.num_classes)
            order = scores.double().argsort(descending=True, stable=True)
            order = order[labels[order] >= 0]
            hits = matched(boxes[order], labels[order], true_boxes, true_labels, self.overlaps)
            scores = scores.double().where(boxes.isfinite().all(1), math.nan)
            self.detections.append((scores[order], labels[order].long(), hits))

    def compute(self, world: World) -> float:
        """Return the mean average precision over all ranks. All ranks must call it, including ranks without samples."""
        empty = (torch.zeros(0).double(), torch.zeros(0).long(), torch.zeros(0, len(self.overlaps), dtype=torch.bool))
        columns = [torch.cat(parts) for parts in zip(empty, *self.detections)]
        if world.size > 1:  # move to the device only to gather, because mps, which has one process, has no float64
            gathered = [world.all_gather(column.to(world.device)) for column in columns]
            columns = [torch.cat([to_cpu(part) for part in parts]) for parts in gathered]
        scores, labels, hits = columns
        targets = to_cpu(world.all_reduce_sum(self.targets.to(world.device, copy=True)))
        if scores.isnan().any():  # the model has diverged
            return math.nan
        per_class = [
            precision(scores[labels == c], hits[labels == c], int(targets[c])) for c in targets.nonzero().flatten()
        ]
        return torch.cat(per_class).mean().item() if per_class else math.nan


def matched(boxes: Tensor, labels: Tensor, targets: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
    """Return whether each box of a sample is a hit at each overlap, (N, K) bool. boxes: sorted by score, best first."""
    hits = torch.zeros(len(boxes), len(overlaps), dtype=torch.bool)
    shared = overlap(boxes.double(), targets.double()).where(labels[:, None] == classes, -1.0)
    if not len(targets):
        return hits
    for k, least in enumerate(overlaps.tolist()):
        free = shared.clone()
        for i in range(len(boxes)):
            largest, place = free[i].max(0)
            if largest >= least:
                hits[i, k] = True
                free[:, place] = -1
    return hits


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of all pairs, (N, M). first: (N, 4), second: (M, 4), as x1, y1, x2, y2."""
    low = torch.maximum(first[:, None, :2], second[:, :2])
    high = torch.minimum(first[:, None, 2:], second[:, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1) for boxes in (first, second)]
    return shared / (areas[0][:, None] + areas[1] - shared).clamp(min=1e-12)


def precision(scores: Tensor, hits: Tensor, targets: int) -> Tensor:
    """Return the average precision of one class at each overlap, (K,) float64. hits: (N, K) bool."""
    levels, counts = (-scores).unique(return_counts=True)  # a point of the curve per score, the highest score first
    if not len(levels):
        return torch.zeros(hits.shape[1], dtype=torch.float64)
    last = counts.cumsum(0) - 1
    right = hits[(-scores).argsort(stable=True)].double().cumsum(0)[last]  # (L, K)
    share, recall = right / (last + 1.0)[:, None], right / targets
    share = share.flip(0).cummax(0).values.flip(0)  # the best precision at this recall or a larger one
    place = torch.searchsorted(recall.T.contiguous(), RECALLS.expand(hits.shape[1], -1).contiguous())  # (K, 101)
    padded = torch.nn.functional.pad(share.T, (0, 1))  # recalls that are not reached have precision 0
    return padded.gather(1, place).mean(1)
