"""Save the learning curves as a figure at the end of the run."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from lab.callbacks.base import Callback
from samebits.extras import check_installed
from samebits.files import replacing
from samebits.status import read_metrics

POINTS = 40  # longer curves are drawn faintly, and their running median over about 1/20 of the points on top
NOT_DRAWN = ("epoch", "skipped_steps")  # training values that are not drawn


class Curves(Callback):
    """Save curves.png: the values of metrics.jsonl, with a panel for each quantity and a line for each split. The
    dotted line marks the best checkpoint. Requires matplotlib (extra `report`)."""

    def on_start(self, state: Any) -> None:
        """Raise ConfigError if matplotlib is missing."""
        check_installed("matplotlib", "callback=curves", "report")  # not after hours of training

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """Save the figure, on the main rank."""
        if not self.run.world.is_main:
            return
        if panels := panels_of(read_metrics(self.run.directory)):
            path = self.run.directory / "curves.png"
            with replacing(path) as file:
                drawn(panels, state.best[0][1] if state.best else None).savefig(file, format="png", dpi=120)
            self.run.logger.say(f"learning curves: {path.name}")


Panels = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]


def panels_of(lines: list[dict[str, Any]]) -> Panels:
    """Return {quantity: {split: (steps, values)}}: first the loss, then the other scores; quantities of training only
    are last. lines: the lines of metrics.jsonl."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for key, value in line.items():
            split, _, name = key.partition("/")
            if (
                split.startswith(("train", "val", "test")) and name not in NOT_DRAWN and value is not None
            ):  # null is inf or NaN
                panels[name][split].append((line["step"], value))
    order = sorted(panels, key=lambda name: (list(panels[name]) == ["train"], name != "loss"))
    return {
        name: {split: tuple(np.array(column) for column in zip(*panels[name][split])) for split in sorted(panels[name])}  # type: ignore[misc]
        for name in order
    }


def running_median(values: np.ndarray, window: int) -> np.ndarray:
    """Return the median of the `window` values around each value, (N,) -> (N,); fewer at both ends. window: odd."""
    padded = np.pad(values.astype(float), window // 2, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)


def drawn(panels: Panels, best_step: float | None) -> Any:
    """Return the matplotlib figure. best_step: position of the dotted line; None: no line."""
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.5 * columns, 3.2 * rows), layout="constrained")
    axes = iter(figure.subplots(rows, columns, squeeze=False).flat)
    colors: dict[str, str] = {}
    last_step = max(steps[-1] for splits in panels.values() for steps, _ in splits.values())
    for (name, splits), axis in zip(panels.items(), axes):
        for split, (steps, values) in splits.items():
            color = colors.setdefault(split, f"C{len(colors)}")
            window = 1 if name == "lr" else len(values) // POINTS * 2 + 1
            if window > 1:
                axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            marker = "o" if len(values) <= POINTS else ""
            axis.plot(steps, running_median(values, window), color=color, label=split, marker=marker, markersize=3)
        if best_step is not None and list(splits) != ["train"]:
            axis.axvline(best_step, color="grey", linestyle=":", linewidth=1, label="best")
        every = np.concatenate([values for _, values in splits.values()])
        if every.min() > 0 and every.max() > 20 * every.min():
            axis.set_yscale("log")
        axis.set_title(name, parse_math=False)
        axis.set_xlabel("step")
        axis.set_xlim(0, last_step * 1.02)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    for axis in axes:  # cells of the grid without a panel
        axis.set_axis_off()
    return figure
