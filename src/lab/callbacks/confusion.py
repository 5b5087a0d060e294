"""Save the confusion matrix of each split as a figure at the end of the run."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

from lab.callbacks.base import Callback
from lab.metrics.confusion import ConfusionMatrix
from samebits.errors import ConfigError
from samebits.extras import check_installed
from samebits.schema import did_you_mean
from samebits.status import class_names

MOST_NUMBERS = 20  # with more classes the cells show no counts


class ConfusionPicture(Callback):
    """Save figures of the confusion matrices of the best weights to media/<split>/<metric>/ and the loggers.

    metric: name of a lab.metrics.confusion.ConfusionMatrix in task.metrics. Requires matplotlib (extra `report`).
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric

    def on_start(self, state: Any) -> None:
        """Raise ConfigError if matplotlib or the metric is missing."""
        check_installed("matplotlib", "callback=confusion", "report")  # not after hours of training
        if not isinstance(state.task.metrics.get(self.metric), ConfusionMatrix):
            hint = did_you_mean(self.metric, list(state.task.metrics))
            raise ConfigError(
                f"callback.confusion.metric={self.metric}: task.metrics has no ConfusionMatrix of this name{hint}"
            )

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """Save the figures, on the main rank."""
        run = self.run
        if not run.world.is_main:
            return
        classes = class_names(run.directory)
        for split in dict.fromkeys(key.partition("/")[0] for key in scores):
            path = run.directory / f"{split}_{self.metric}.csv"
            if path.exists():  # the training split has no file
                with open(path, newline="", encoding="utf-8") as file:
                    (_, *names), *rows = csv.reader(file)
                table = np.array([row[1:] for row in rows], dtype=np.int64)
                numbered = names == [str(number) for number in range(len(names))]
                if numbered and classes and len(classes) == len(names):
                    names = list(classes)
                run.logger.show(state.step, f"{split}/{self.metric}", drawn(table, names, split))


def drawn(table: np.ndarray, names: list[str], title: str) -> Any:
    """Return the matplotlib figure of the counts (C, C), [label, prediction]. Colors are fractions of each label."""
    from matplotlib.figure import Figure

    count = len(names)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    side = 2.2 + 0.42 * min(count, 40)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    every = -(-count // 40)  # with many classes, name only some of them
    places = range(0, count, every)
    shown = [names[k] for k in places]
    axis.set_xticks(places, shown, rotation=90 if max(map(len, names)) > 3 else 0, parse_math=False)
    axis.set_yticks(places, shown, parse_math=False)  # a $ in a name is not mathtext
    axis.set_xlabel("prediction")
    axis.set_ylabel("label")
    right = table.trace() / max(table.sum(), 1)
    axis.set_title(f"{title}: {table.sum():,} labels, {right:.1%} right")
    figure.colorbar(image, ax=axis, label="share of the label", shrink=0.8)
    if count <= MOST_NUMBERS:
        for (row, column), number in np.ndenumerate(table):
            if number:
                color = "white" if shares[row, column] > 0.5 else "black"
                axis.text(column, row, f"{number:,}", ha="center", va="center", color=color, fontsize=7)
    return figure
