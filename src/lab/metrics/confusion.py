"""Scores computed from the confusion matrix: macro F1, mean IoU, recall of each class."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lab.metrics.base import Score, SummedMetric
from samebits.errors import ConfigError
from samebits.files import replace_text
from samebits.schema import Count


class Confusion(SummedMetric):
    """The base class of scores that are computed from counts (C, C), [label, prediction].

    output: (B, C, ...) logits. batch["y"]: (B, ...) integer labels. ignore_index: label of elements that do not count,
    such as -100, or 255 for pixels without a class; if it is a class, means leave it out. None: all labels count.
    """

    def __init__(self, num_classes: Count, ignore_index: int | None = None) -> None:
        super().__init__(num_classes**2 + 2)  # + 2: ignored labels, labels out of range
        self.num_classes, self.ignore_index = num_classes, ignore_index

    def count(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the counts of a batch, flat. Raise ConfigError if the shapes or dtypes do not fit."""
        label, classes = batch["y"], self.num_classes
        if label.dim() == output.dim() == 2 and label.shape[1] == 1:
            label = label[:, 0]
        if output.shape[1:2] != (classes,) or label.is_floating_point() or label.shape != output[:, 0].shape:
            raise ConfigError(
                f"{type(self).__name__} of {classes} classes cannot compare an output of shape {tuple(output.shape)} "
                f"with batch['y'] of {label.dtype} and shape {tuple(label.shape)}: expected logits "
                "(B, num_classes, ...) and integer labels (B, ...)"
            )
        label = label.long()
        cell = label * classes + output.argmax(1)
        cell = torch.where((label >= 0) & (label < classes), cell, classes**2 + 1)
        if self.ignore_index is not None:
            cell = torch.where(label == self.ignore_index, classes**2, cell)
        cell = cell.flatten()
        # not bincount, because it waits for the device
        return torch.zeros(self.shape, dtype=self.dtype, device=cell.device).scatter_add_(
            0, cell, torch.ones_like(cell)
        )

    def score(self, total: Tensor) -> Score:
        """Return the score. Raise ConfigError if a label is out of range."""
        if total[-1]:
            raise ConfigError(
                f"{type(self).__name__}: {int(total[-1]):,} labels are not in 0 to {self.num_classes - 1}: set "
                "num_classes, or set ignore_index to the label that must not count"
            )
        return self.of_table(total[:-2].view(self.num_classes, -1).double())

    def of_table(self, table: Tensor) -> Score:
        """Return the score. table: (C, C) float64 counts, [label, prediction], over all samples of all ranks."""
        raise NotImplementedError

    def mean_of_classes(self, share: Tensor, whole: Tensor) -> float:
        """Return the mean of share / whole, both (C,), over the classes with whole > 0, except ignore_index."""
        counts = whole > 0
        if self.ignore_index in range(self.num_classes):
            counts[self.ignore_index] = False
        return (share / whole)[counts].mean().item()


class MacroF1(Confusion):
    """The mean over classes of 2 TP / (2 TP + FP + FN). Classes without labels and predictions do not count."""

    higher_is_better = True

    def of_table(self, table: Tensor) -> float:
        """Return the macro F1."""
        return self.mean_of_classes(2 * table.diag(), table.sum(0) + table.sum(1))


class MeanIoU(Confusion):
    """The mean over classes of TP / (TP + FP + FN). Classes without labels and predictions do not count."""

    higher_is_better = True

    def of_table(self, table: Tensor) -> float:
        """Return the mean IoU."""
        return self.mean_of_classes(table.diag(), table.sum(0) + table.sum(1) - table.diag())


class ConfusionMatrix(Confusion):
    """The recall of each class, recall_<name>; NaN for a class without samples. The matrix of the last evaluation is
    written to <split>_<metric>.csv in the run directory: labels are rows, predictions are columns.

    names: class names; None: class numbers. recall: False to write only the matrix, without a score for each class.
    """

    higher_is_better = True

    def __init__(
        self,
        num_classes: Count,
        ignore_index: int | None = None,
        names: Sequence[str] | None = None,
        recall: bool = True,
    ) -> None:
        super().__init__(num_classes, ignore_index)
        self.recall = recall
        self.names = [str(number) for number in range(num_classes)] if names is None else list(names)
        if len(set(self.names)) != num_classes:
            raise ConfigError(f"ConfusionMatrix: names={self.names}: expected {num_classes} different names")

    def of_table(self, table: Tensor) -> dict[str, float]:
        """Keep the matrix; return the recalls."""
        self.table = table
        if not self.recall:
            return {}
        recall = table.diag() / table.sum(1)
        return {f"recall_{name}": value for name, value in zip(self.names, recall.tolist())}

    def write(self, path: Path) -> None:
        """Write the matrix as <path>.csv."""
        rows = [["label", *self.names], *([name, *row] for name, row in zip(self.names, self.table.long().tolist()))]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        replace_text(path.with_name(f"{path.name}.csv"), text.getvalue())
