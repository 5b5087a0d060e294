"""Draw the pictures of report.md with matplotlib: curves, scores, objectives."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogFormatterSciNotation, NullLocator, StrMethodFormatter

from samebits.files import make_folder, replace_text
from samebits.sweeps.report.analyse import Group, groups, is_failure, pareto
from samebits.sweeps.report.axes import MAX_AXES, Axis, axes as axes_of, score_axis, wants_log
from samebits.sweeps.report.curves import band, curve_scale, values_of
from samebits.sweeps.report.read import Job, Objective, Study
from samebits.sweeps.report.style import CATEGORICAL, FAILED, FAINT, MARKERS, MAX_COLORED, shortened

RC: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#E6E8EB", "grid.linewidth": 0.7,
    "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white", "axes.edgecolor": "#8A9199",
    "xtick.color": "#3B424A", "ytick.color": "#3B424A", "pdf.fonttype": 42,  # TrueType, because journals reject Type 3
    "text.parse_math": False, "text.usetex": False,  # $ in a value must not start a formula
}  # fmt: skip
MAX_LABEL = 44
MEAN = "mean and its 95 % interval"


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw each picture for which the jobs have data into `folder`. Return the files."""
    make_folder(folder)
    ranked = groups(study)
    with matplotlib.rc_context(RC):
        figures = {"curves": _curves(study, ranked), "scores": _scores(study), "objectives": _objectives(study, ranked)}
        files = []
        for name, figure in figures.items():
            for ending in (".png", ".pdf"):  # pdf for papers
                path = folder / f"{name}{ending}"
                path.unlink(missing_ok=True)  # remove the file of an earlier report
                if figure is not None:
                    save(figure, path, dpi=130)
            if figure is not None:
                files.append(folder / f"{name}.png")
    return files


def save(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure with the settings RC, without formulas: logarithmic axes have labels such as 0.001 and 1e-05."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        if isinstance(axis.get_minor_formatter(), LogFormatterSciNotation):
            axis.set_minor_formatter(LogFormatter())
    drawn = io.BytesIO()  # matplotlib raises an AttributeError if a PDF cannot be written because the disk is full
    figure.savefig(drawn, format=path.suffix[1:], **options)
    replace_text(path, drawn.getvalue())


def _curves(study: Study, ranked: Sequence[Group]) -> Figure | None:
    """Draw score and training loss against the step, with bands over seeds; failed jobs are dashed and end with a
    cross."""
    objective = study.objective.key
    logged = {key for job in study.jobs for key in job.curves}
    keys = [key for key in (objective, "train/loss" if objective != "train/loss" else "val/loss") if key in logged]
    if not keys:
        return None
    figure = Figure(figsize=(5.2 * len(keys), 3.6), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys):
        for rank, group in reversed(list(enumerate(ranked[:MAX_COLORED]))):
            _group_curve(axes, group, rank, key)
        bands = [found for group in ranked[MAX_COLORED:] if (found := band(group.jobs, key))]
        faint = LineCollection([list(zip(b.steps, b.mean)) for b in bands], colors=FAINT, linewidths=0.7, zorder=1)
        axes.add_collection(faint)
        for job in (job for job in study.jobs if job.died and job.curves.get(key)):
            steps, values = zip(*job.curves[key])
            axes.plot(steps, values, "--", color=FAILED, lw=0.9, alpha=0.8, zorder=3)
            axes.plot(steps[-1], values[-1], "x", color=FAILED, ms=6, zorder=4)
        axes.autoscale_view()
        scale = curve_scale([values_of(group.jobs, key) for group in ranked])
        axes.set(xlabel="step", title=key, yscale="log" if scale.log else "linear")
        if scale.limits:
            axes.set_ylim(top=scale.limits[1])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if failed := [job for job in study.jobs if job.died]:
        without = sum(not job.curves.get(keys[0]) for job in failed)
        handles.insert(0, figure.axes[0].plot([], [], "x--", color=FAILED, lw=0.9, ms=6)[0])
        labels.insert(0, f"{len(failed)} failed" + (f", {without} before the first score" if without else ""))
    if len(ranked) > MAX_COLORED:
        handles.insert(0, figure.axes[0].plot([], [], color=FAINT, lw=1)[0])
        labels.insert(0, f"{len(ranked) - MAX_COLORED} others")
    longest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), round(len(keys) * 78 / (longest + 8))))
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _group_curve(axes: Axes, group: Group, rank: int, key: str) -> None:
    if (found := band(group.jobs, key)) is None:
        return
    color = CATEGORICAL[rank]
    look: dict[str, Any] = {"lw": 1.6, "label": shortened(group.label, MAX_LABEL)}
    if len(found.steps) < 12:
        look |= {"marker": MARKERS[rank], "ms": 3.5}
    axes.plot(found.steps, found.mean, color=color, **look)
    if found.seeds > 1:
        axes.fill_between(found.steps, found.low, found.high, color=color, alpha=0.18, lw=0)


def _scores(study: Study) -> Figure | None:
    """Draw the score against each swept key: one dot per job, the means as a line, or as bars above categories, with
    intervals. With two swept keys the color shows the value of the other key."""
    found, scored = axes_of(study)[:MAX_AXES], score_axis(study)
    if not found or not scored.values:
        return None
    columns = min(len(found), 4)
    rows = -(-len(found) // columns)
    widest = max(len(axis.values) if axis.kind == "category" else 0 for axis in found)
    figure = Figure(
        figsize=(max(3.4, 0.55 * widest) * columns + 1.4 * (columns == 1), 3.3 * rows), layout="constrained"
    )
    places = figure.subplots(rows, columns, squeeze=False, sharey=True)
    places[0][0].set_yscale(scored.kind)
    group_of = {job.key: group for group in groups(study) for job in group.jobs}
    for i, (panel, axis) in enumerate(zip(places.flat, found)):
        other = found[1 - i] if len(found) == 2 else None
        _score_panel(panel, study, axis, other if other and len(other.values) <= MAX_COLORED else None, group_of)
    for panel in list(places.flat)[len(found) :]:
        panel.set_axis_off()
    for row in places:
        row[0].set_ylabel(study.objective.key)
    return figure


def _score_panel(panel: Axes, study: Study, axis: Axis, split: Axis | None, group_of: Mapping[str, Group]) -> None:
    """Draw a panel. split: the axis whose values get different colors and shapes."""
    panel.set_xscale("log" if axis.kind == "log" else "linear")
    if axis.named:
        panel.xaxis.set_minor_locator(NullLocator())
        texts = ["\n".join(shortened(line, 16) for line in axis.text(value).split("\n")) for value in axis.values]
        panel.set_xticks([axis.place(value) or 0.0 for value in axis.values], texts)
        if sum(max(map(len, text.split("\n"))) for text in texts) > 30:
            panel.tick_params("x", rotation=30)
    if axis.kind == "category":
        panel.set_xlim(-0.5, len(axis.values) - 0.5)
    placed = [(x, job) for job in study.jobs if (x := axis.place(axis.value(study, job))) is not None]
    options, ranged = split.values if split else [None], False
    for i, option in enumerate(options):
        aside = (i - (len(options) - 1) / 2) * min(0.12, 0.7 / len(options)) if axis.kind == "category" else 0.0
        jobs = [(x + aside, j) for x, j in placed if not split or repr(split.value(study, j)) == repr(option)]
        means = _means(jobs, study.objective, group_of)
        ranged |= any(interval for _, _, interval in means)
        name = split.text(option).replace("\n", " ") if split else MEAN if ranged else "mean"
        _score_line(panel, study.objective, jobs, means, i, name, axis.joined)
    if failed := [(x, 1.04) for x, job in placed if is_failure(job, study.objective)]:
        above = panel.get_xaxis_transform()
        panel.plot(*zip(*failed), "x", color=FAILED, ms=5.5, clip_on=False, transform=above, label="failed")
    if panel.get_legend_handles_labels()[0]:
        title = {"title": split.key + f": {MEAN}" * ranged, "title_fontsize": 8} if split else {}
        lines = max((text.get_text().count("\n") for text in panel.get_xticklabels()), default=0) if axis.named else 0
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14 - 0.05 * lines), ncols=4, **title)
    panel.set_title(axis.key, pad=16)


Mean = tuple[float, float, tuple[float, float] | None]  # x, mean, its 95 % interval


def _means(jobs: Sequence[tuple[float, Job]], objective: Objective, group_of: Mapping[str, Group]) -> list[Mean]:
    """Return the mean at each x: of the means of the configurations there, so that each has the same weight. Only the
    mean of one configuration has an interval. jobs: (x, job). group_of: {key of a job: its configuration}."""
    at: dict[float, list[tuple[Job, float]]] = {}
    for x, job in jobs:
        if (score := job.score(objective)) is not None:
            at.setdefault(x, []).append((job, score))
    found: list[Mean] = []
    for x, here in sorted(at.items()):
        known = list({group_of[job.key].label: group_of[job.key] for job, _ in here}.values())
        # False if x is a seed or a fold
        whole = sum(job.score(objective) is not None for group in known for job in group.jobs) == len(here)
        scores = [group.mean(objective) or 0.0 for group in known] if whole else [score for _, score in here]
        interval = known[0].interval(objective) if whole and len(known) == 1 else None
        found.append((x, statistics.fmean(scores), interval))
    return found


def _score_line(
    panel: Axes, objective: Objective, jobs: Sequence[tuple[float, Job]], means: Sequence[Mean], i: int, name: str,
    joined: bool,
) -> None:  # fmt: skip
    """Draw a dot for each score, hollow if the job is unfinished, and the means: a line through them if `joined`,
    otherwise a bar each, because categories have no order. jobs: (x, job). All dots are one artist, because 5,000
    artists would take seconds."""
    scored = [(x, score) for x, job in jobs if (score := job.score(objective)) is not None]
    reached = [(x, job.provisional(objective)) for x, job in jobs if job.score(objective) is None]
    unfinished = [(x, score) for x, score in reached if score is not None]
    has_means = len(scored) > len(means) and (not joined or len(means) <= 12)
    if scored:
        label = "" if has_means or name == "mean" else name
        panel.plot(*zip(*scored), MARKERS[i], color=CATEGORICAL[i], ms=4.5, alpha=0.55, mew=0, label=label)
    if unfinished:
        label = "" if "pruned, unfinished" in panel.get_legend_handles_labels()[1] else "pruned, unfinished"
        look: dict[str, Any] = {"color": FAINT, "ms": 4, "mfc": "none", "mew": 0.8, "zorder": 1.5, "label": label}
        panel.plot(*zip(*unfinished), MARKERS[i], **look)
    if has_means:
        look = {"ms": 3, "lw": 1.2} if joined else {"ms": 12, "mew": 1.6}
        xs, ys, _ = zip(*means)
        style = f"-{MARKERS[i]}" if joined else "_"
        panel.plot(xs, ys, style, color=CATEGORICAL[i], label=name, **look)
        if ranges := [(x, *interval) for x, _, interval in means if interval]:
            panel.vlines(*zip(*ranges), color=CATEGORICAL[i], lw=1.1)


def _objectives(study: Study, ranked: Sequence[Group]) -> Figure | None:
    """Draw the first two objectives against each other, with the Pareto front."""
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
