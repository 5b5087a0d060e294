"""Parallel coordinates: an axis for each swept key and the score, a line for each job; failed red, unfinished grey."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from engine.sweeps.report.analyse import axis_kind, distinct_values, is_failure, names_fit, show, varied, wants_log
from engine.sweeps.report.read import Job, Study
from engine.sweeps.report.style import FAILED, FAINT, SEQUENTIAL

MAX_AXES = 12
NO_SCORE = -0.14  # where the lines of failed jobs end, below the axis of the score


@dataclass(frozen=True)
class Scale:
    """One axis. place: value -> height 0..1 (None: no value); ticks: (height, text)."""

    place: Callable[[Any], float | None]
    ticks: list[tuple[float, str]]


def scale(values: Sequence[Any], kind: str) -> Scale:
    """kind: linear, log or category; categories in the order given, evenly spread."""
    distinct = {repr(value): value for value in values}
    if kind == "category":
        order = {name: (i + 0.5) / len(distinct) for i, name in enumerate(distinct)}
        return Scale(lambda value: order.get(repr(value)), [(order[name], show(v)) for name, v in distinct.items()])
    to, back = (math.log, math.exp) if kind == "log" else (float, float)
    low, high = to(min(distinct.values())), to(max(distinct.values()))

    def place(value: Any) -> float | None:
        return None if value is None else (to(value) - low) / (high - low) if high > low else 0.5

    ticks = sorted(distinct.values())
    if not names_fit(ticks, kind):
        ticks = [float(f"{back(low + (high - low) * i / 4):.3g}") for i in range(5)]
    return Scale(place, [(y, show(tick)) for tick in ticks if (y := place(tick)) is not None])


def parallel(study: Study) -> Figure | None:
    """The figure; None with fewer than two varied keys, and for runs that are not one sweep."""
    keys = varied(study)[:MAX_AXES] if study.is_sweep else []
    objective = study.objective
    scored = {job.key: score for job in study.jobs if (score := job.provisional(objective)) is not None}
    if len(keys) < 2 or not scored:
        return None
    scales = [scale(distinct_values(study, key), axis_kind(study, key)) for key in keys]
    last = scale(list(scored.values()), "log" if wants_log(scored.values()) else "linear")
    figure = Figure(figsize=(max(5.5, 1.45 * (len(keys) + 1) + 1), 3.9), layout="constrained")
    axes = figure.subplots()
    colors = matplotlib.colormaps[SEQUENTIAL]
    good_end = 1.0 if objective.mode == "max" else 0.0

    def end(job: Job) -> float | None:
        return last.place(scored[job.key]) if job.key in scored else NO_SCORE if is_failure(job, objective) else None

    drawn = [(job, y) for job in study.jobs if (y := end(job)) is not None]
    lines = []
    for job, y in sorted(drawn, key=lambda pair: -abs(pair[1] - good_end)):  # the best ones on top
        heights = [s.place(study.value(job, key)) for s, key in zip(scales, keys)] + [y]
        points = [(x, height) for x, height in enumerate(heights) if height is not None]  # past axes of keys it lacks
        color: Any = colors(0.95 * abs(y - good_end))
        width, style = 1.3, "-"
        if job.key not in scored:
            color, style = FAILED, "--"
        elif job.status != "finished":
            color, width = FAINT, 0.8
        lines.append((color is FAINT, points, color, width, style))
    lines.sort(key=lambda line: not line[0])  # those that have not finished behind the others
    _, segments, shades, widths, styles = zip(*lines)
    axes.add_collection(
        LineCollection(segments, colors=shades, linewidths=widths, linestyles=styles, alpha=0.85, zorder=2)
    )
    for x, (key, found) in enumerate([*zip(keys, scales), (objective.key, last)]):
        _axis(axes, x, key, found)
    if any(job.key not in scored for job, _ in drawn):
        axes.text(len(keys) + 0.04, NO_SCORE, "failed", color=FAILED, va="center", fontsize=8)
    axes.set(xlim=(-0.3, len(keys) + 0.45), ylim=(-0.2, 1.12))
    axes.set_axis_off()
    shade = ScalarMappable(Normalize(0, 0.95), colors)
    bar = figure.colorbar(shade, ax=axes, pad=0.01, fraction=0.03, aspect=30, ticks=[0, 0.95])
    bar.ax.invert_yaxis()
    bar.ax.set_yticklabels(["best", "worst"])
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _axis(axes: Any, x: int, key: str, found: Scale) -> None:
    axes.plot([x, x], [0, 1], color="#3B424A", lw=1.1, zorder=5)
    axes.text(x, 1.07, key if len(key) < 24 else f"…{key[-22:]}", ha="center", fontsize=9, weight="bold")
    for y, text in found.ticks:
        axes.plot([x - 0.02, x + 0.02], [y, y], color="#3B424A", lw=1.1, zorder=5)
        axes.text(
            x + 0.04, y, text if len(text) < 14 else f"{text[:13]}…", va="center", fontsize=8, zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
