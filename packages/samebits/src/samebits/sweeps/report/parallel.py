"""Parallel coordinates: an axis for each swept key and the score, a line for each job; failed red, unfinished grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from samebits.sweeps.report.axes import NO_SCORE, parallel_lines
from samebits.sweeps.report.read import Job, Study
from samebits.sweeps.report.style import FAILED, FAINT, INK, SEQUENTIAL, shortened


def parallel(study: Study) -> Figure | None:
    found = parallel_lines(study)
    if found is None:
        return None
    last = len(found.axes) - 1
    figure = Figure(figsize=(max(5.5, 1.45 * (last + 1) + 1), 3.9), layout="constrained")
    axes, colors = figure.subplots(), matplotlib.colormaps[SEQUENTIAL]
    good_end = 1.0 if study.objective.mode == "max" else 0.0

    def look(job: Job, end: float) -> tuple[int, float, Any, float, str]:
        """(layer, order, colour, width, style): unfinished ones behind the others, the best on top."""
        badness = abs(end - good_end)
        if end == NO_SCORE:
            return 1, -badness, FAILED, 1.3, "--"
        return (1, -badness, colors(0.95 * badness), 1.3, "-") if job.status == "finished" else (0, 0, FAINT, 0.8, "-")

    drawn = [(look(job, line[-1]), line) for job, line in zip(study.jobs, found.heights) if line[-1] is not None]
    drawn.sort(key=lambda pair: pair[0][:2])
    points = [[(x, y) for x, y in enumerate(line) if y is not None] for _, line in drawn]  # past axes of keys it lacks
    _, _, shades, widths, styles = zip(*(looks for looks, _ in drawn))
    # a list: matplotlib takes a tuple of two styles for one, (offset, dashes)
    drawn_as: Any = {"colors": shades, "linewidths": widths, "linestyles": list(styles)}
    axes.add_collection(LineCollection(points, alpha=0.85, zorder=2, **drawn_as))
    for x, (name, ticks) in enumerate(found.axes):
        _axis(axes, x, name, ticks)
    if any(line[-1] == NO_SCORE for _, line in drawn):
        axes.text(last + 0.04, NO_SCORE, "failed", color=FAILED, va="center", fontsize=8)
    axes.set(xlim=(-0.3, last + 0.45), ylim=(-0.2, 1.12))
    axes.set_axis_off()
    shade = ScalarMappable(Normalize(0, 0.95), colors)
    bar = figure.colorbar(shade, ax=axes, pad=0.01, fraction=0.03, aspect=30, ticks=[0, 0.95])
    bar.ax.invert_yaxis()
    bar.ax.set_yticklabels(["best", "worst"])
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _axis(axes: Axes, x: int, name: str, ticks: Sequence[tuple[float, str]]) -> None:
    axes.plot([x, x], [0, 1], color=INK, lw=1.1, zorder=5)
    axes.text(x, 1.07, name if len(name) < 24 else f"…{name[-22:]}", ha="center", fontsize=9, weight="bold")
    for y, text in ticks:
        axes.plot([x - 0.02, x + 0.02], [y, y], color=INK, lw=1.1, zorder=5)
        axes.text(
            x + 0.04, y, shortened(text, 14), va="center", fontsize=8, zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
