"""The pictures of report.md, with matplotlib: curves, scores, parallel coordinates, importance, objectives."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from engine.config import is_seed
from engine.sweeps.report.analyse import (
    Group,
    axis_kind,
    distinct_values,
    groups,
    is_failure,
    names_fit,
    pareto,
    show,
    varied,
    wants_log,
)
from engine.sweeps.report.curves import band, ended_badly
from engine.sweeps.report.importance import Importance
from engine.sweeps.report.parallel import parallel
from engine.sweeps.report.read import Job, Study
from engine.sweeps.report.style import CATEGORICAL, FAILED, FAINT, MARKERS, MAX_COLORED

RC: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#E6E8EB", "grid.linewidth": 0.7,
    "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white", "axes.edgecolor": "#8A9199",
    "xtick.color": "#3B424A", "ytick.color": "#3B424A", "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
}  # fmt: skip
MAX_LABEL = 44
MAX_PANELS = 12


def draw(study: Study, importance: Importance | None, folder: Path) -> list[Path]:
    """Draw each picture for which the jobs have data into `folder`. Returns the files."""
    folder.mkdir(exist_ok=True)
    ranked = groups(study)
    with matplotlib.rc_context(RC):
        figures = {
            "curves": _curves(study, ranked),
            "scores": _scores(study),
            "objectives": _objectives(study, ranked),
            "parallel": parallel(study),
            "importance": _importance(importance),
        }
        files = []
        for name, figure in figures.items():
            for ending in (".png", ".pdf"):  # pdf: for a paper
                path = folder / f"{name}{ending}"
                path.unlink(missing_ok=True)  # an earlier report may have drawn it
                if figure is not None:
                    figure.savefig(path, dpi=130)
            if figure is not None:
                files.append(folder / f"{name}.png")
    return files


def _curves(study: Study, ranked: Sequence[Group]) -> Figure | None:
    """The score and the training loss against the step; bands over seeds, failed jobs dashed up to a cross."""
    objective = study.objective.key
    logged = {key for job in study.jobs for key in job.curves}
    keys = [key for key in (objective, "train/loss" if objective != "train/loss" else "val/loss") if key in logged]
    if not keys:
        return None
    figure = Figure(figsize=(5.2 * len(keys), 3.6), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys):
        seen: list[list[float]] = []
        faint: list[list[tuple[float, float]]] = []
        for rank, group in reversed(list(enumerate(ranked))):
            seen.append(_group_curve(axes, group, rank, key, faint))
        axes.add_collection(LineCollection(faint, colors=FAINT, linewidths=0.7, zorder=1))
        axes.autoscale_view()
        axes.set(xlabel="step", title=key)
        if wants_log([value for values in seen for value in values]):
            axes.set_yscale("log")
        if (limit := ceiling(seen)) is not None:
            axes.set_ylim(top=limit)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if failed := [job for job in study.jobs if ended_badly(job)]:
        without = sum(not job.curves.get(keys[0]) for job in failed)
        handles.insert(0, figure.axes[0].plot([], [], "x--", color=FAILED, lw=0.9, ms=6)[0])
        labels.insert(0, f"{len(failed)} failed" + (f", {without} before the first score" if without else ""))
    if len(ranked) > MAX_COLORED:
        handles.insert(0, figure.axes[0].plot([], [], color=FAINT, lw=1)[0])
        labels.insert(0, f"{len(ranked) - MAX_COLORED} others")
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=_columns(labels, len(keys)), fontsize=8
    )
    return figure


def _group_curve(axes: Axes, group: Group, rank: int, key: str, faint: list[list[tuple[float, float]]]) -> list[float]:
    """Draw one group's curve into `axes`, or add it to `faint` if it gets no colour. Returns the values that the y axis
    must show."""
    seen: list[float] = []
    for job in group.jobs:
        points = job.curves.get(key)
        if ended_badly(job) and points:
            steps, values = zip(*points)
            axes.plot(steps, values, "--", color=FAILED, lw=0.9, alpha=0.8, zorder=3)
            axes.plot(steps[-1], values[-1], "x", color=FAILED, ms=6, zorder=4)
            seen += values
    found = band(group.jobs, key)
    if found is None:
        return seen
    if rank >= MAX_COLORED:
        faint.append(list(zip(found.steps, found.mean)))
        return seen + found.mean
    color = CATEGORICAL[rank]
    look: dict[str, Any] = {"lw": 1.6, "label": shortened(group.label)}
    if len(found.steps) < 12:
        look |= {"marker": MARKERS[rank], "ms": 3.5}
    axes.plot(found.steps, found.mean, color=color, **look)
    if found.seeds > 1:
        axes.fill_between(found.steps, found.low, found.high, color=color, alpha=0.18, lw=0)
    return seen + found.mean


def ceiling(curves: Sequence[Sequence[float]]) -> float | None:
    """Upper limit of the y axis if some curve diverged (a loss of 1e20), else None."""
    tops = sorted(max(curve) for curve in curves if curve)
    usual = tops[(len(tops) - 1) // 2] if tops else 0.0
    return usual * 10 if usual > 0 and tops[-1] > 1e3 * usual else None


def _scores(study: Study) -> Figure | None:
    """Score against each swept key: one dot per job, lines through the means. With two swept keys, the colour shows
    the other key's value."""
    objective, keys = study.objective, (varied(study) or [key for key in study.swept if is_seed(key)])[:MAX_PANELS]
    scored = [score for job in study.jobs if (score := job.provisional(objective)) is not None]
    if not keys or not scored:
        return None
    columns = min(len(keys), 4)
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(max(3.4 * columns, 4.8), 3.3 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharey=True)
    if wants_log(scored):
        places[0][0].set_yscale("log")
    for axes, key in zip(places.flat, keys):
        other = next((k for k in keys if k != key), None) if len(keys) == 2 else None
        _score_panel(axes, study, key, other)
    for axes in list(places.flat)[len(keys) :]:
        axes.set_axis_off()
    for row in places:
        row[0].set_ylabel(objective.key)
    return figure


def _score_panel(axes: Axes, study: Study, key: str, other: str | None) -> None:
    kind, values = axis_kind(study, key), distinct_values(study, key)
    if kind == "log":
        axes.set_xscale("log")
    places = {repr(v): float(i) if kind == "category" else float(v) for i, v in enumerate(values)}
    if names_fit(values, kind):
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(list(places.values()), [shortened(show(value), 16) for value in values])
        if sum(len(show(value)) for value in values) > 30:
            axes.tick_params("x", rotation=30)
    options = distinct_values(study, other) if other else []
    split = other if 1 < len(options) <= MAX_COLORED else None
    for i, option in enumerate(options if split else [None]):
        jobs = [j for j in study.jobs if not split or repr(study.value(j, split)) == repr(option)]
        _score_line(axes, study, [(places.get(repr(study.value(j, key))), j) for j in jobs], i, split and show(option))
    if any(is_failure(job, study.objective) for job in study.jobs):
        axes.plot([], [], "x", color=FAILED, label="failed")
    if any(job.status != "finished" and job.provisional(study.objective) is not None for job in study.jobs):
        axes.plot([], [], "o", color=FAINT, mfc="none", label="pruned, unfinished")
    if axes.get_legend_handles_labels()[0]:
        title = {"title": split, "title_fontsize": 8} if split else {}
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, **title)
    axes.set_title(key, pad=16)


def _score_line(axes: Axes, study: Study, jobs: Sequence[tuple[float | None, Job]], i: int, name: str | None) -> None:
    """jobs: (x, job). Dots for scores, a line through the mean at each x, crosses above the axes for failures."""
    by_place: dict[float, list[float]] = {}
    dots: list[tuple[float, float]] = []
    unfinished: list[tuple[float, float]] = []
    failed: list[tuple[float, float]] = []
    for x, job in jobs:
        score = job.score(study.objective)
        if x is not None and score is not None:
            by_place.setdefault(x, []).append(score)
            dots.append((x, score))
        elif x is not None and (reached := job.provisional(study.objective)) is not None:
            unfinished.append((x, reached))
        elif x is not None and is_failure(job, study.objective):
            failed.append((x, 1.04))
    if dots:  # one artist for all: with one for each of 5,000 jobs a picture takes seconds
        axes.plot(*zip(*dots), MARKERS[i], color=CATEGORICAL[i], ms=4.5, alpha=0.55, mew=0)
    if unfinished:
        axes.plot(*zip(*unfinished), MARKERS[i], color=FAINT, ms=4, mfc="none", mew=0.8, zorder=1.5)
    if failed:
        above = axes.get_xaxis_transform()
        axes.plot(*zip(*failed), "x", color=FAILED, ms=5.5, clip_on=False, transform=above)
    if 1 < len(by_place) <= 12 and any(len(found) > 1 for found in by_place.values()):
        xs = sorted(by_place)
        means = [statistics.fmean(by_place[x]) for x in xs]
        axes.plot(xs, means, f"-{MARKERS[i]}", color=CATEGORICAL[i], ms=3, lw=1.2, label=name or "mean")


def _objectives(study: Study, ranked: Sequence[Group]) -> Figure | None:
    """The first two objectives against each other, with the Pareto front."""
    if len(study.objectives) < 2:
        return None
    a, b = study.objectives[:2]
    points = [(g, x, y) for g in ranked if (x := g.mean(a)) is not None and (y := g.mean(b)) is not None]
    if not points:
        return None
    figure = Figure(figsize=(4.8, 3.8), layout="constrained")
    axes = figure.subplots()
    front = {group.label for group in pareto(study)}
    best = sorted((x, y) for group, x, y in points if group.label in front)
    rest = [(x, y) for group, x, y in points if group.label not in front]
    axes.plot([x for x, _ in rest], [y for _, y in rest], "o", color=FAINT, ms=5, label="beaten in both")
    axes.plot(*zip(*best), "D-", color=CATEGORICAL[0], ms=5, lw=1, label="not beaten")
    if wants_log([x for _, x, _ in points]):
        axes.set_xscale("log")
    if wants_log([y for _, _, y in points]):
        axes.set_yscale("log")
    axes.set(xlabel=f"{a.key} ({a.mode})", ylabel=f"{b.key} ({b.mode})", title="Objectives")
    axes.legend(fontsize=8)
    return figure


def _importance(found: Importance | None) -> Figure | None:
    if found is None:
        return None
    figure = Figure(figsize=(5.2, 0.9 + 0.34 * len(found.shares)), layout="constrained")
    axes = figure.subplots()
    names = list(found.shares)[::-1]
    bars = axes.barh(names, [found.shares[name] for name in names], color=CATEGORICAL[0], height=0.62)
    axes.bar_label(bars, [f"{found.shares[name]:.0%}" for name in names], padding=3, fontsize=8)
    axes.set(xlim=(0, 1.08), title="Importance")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0%}"))
    axes.grid(False, axis="y")
    return figure


def shortened(text: str, limit: int = MAX_LABEL) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _columns(labels: Sequence[str], panels: int) -> int:
    longest = max(map(len, labels), default=1)
    return max(1, min(len(labels), round(panels * 78 / (longest + 8))))
