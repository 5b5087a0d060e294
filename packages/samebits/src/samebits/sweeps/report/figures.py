"""Draw the figures of a paper's table, as wide as a column and as a page, as PDF with embedded TrueType fonts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from samebits.sweeps.report.against import AXES, Line
from samebits.sweeps.report.analyse import caution
from samebits.sweeps.report.axes import wants_log
from samebits.sweeps.report.pictures import RC, save
from samebits.sweeps.report.sheet import Score
from samebits.sweeps.report.style import CATEGORICAL, MARKERS, MAX_COLORED
from samebits.sweeps.report.table import Table

PAPER = RC | {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "axes.linewidth": 0.6, "grid.linewidth": 0.5,
}  # fmt: skip
SHORT = {"sd": "standard deviation", "se": "standard error", "interval": "95 % interval"}
PANEL_IN = 2.1  # height of a panel of curves


def draw_paper(
    table: Table, curves: Mapping[str, Sequence[Line]], inches: tuple[float, float], folder: Path
) -> list[Path]:
    """Write scores_<size>.pdf and curves_<axis>_<size>.pdf for the sizes column and page, and a .png of each page size.
    Return the files."""
    files = []
    for axis, size, ending in product(AXES, ("column", "page"), ("pdf", "png")):  # remove files of an earlier report
        (folder / f"curves_{axis}_{size}.{ending}").unlink(missing_ok=True)
    with matplotlib.rc_context(PAPER):
        for size, width, stacked in zip(("column", "page"), inches, (True, False)):
            figures = {"scores": _scores(table, width, stacked)}
            drawn = {axis: of_axis for axis, of_axis in curves.items() if of_axis}
            figures |= {f"curves_{axis}": _curves(table, axis, lines, width, stacked) for axis, lines in drawn.items()}
            for name, figure in figures.items():
                path = folder / f"{name}_{size}.pdf"
                save(figure, path, metadata={"CreationDate": None})
                files.append(path)
                if size == "page":
                    save(figure, path.with_suffix(".png"), dpi=160)
                    files.append(path.with_suffix(".png"))
    return files


def _scores(table: Table, width: float, stacked: bool) -> Figure:
    """Draw a panel for each score and column: a dot with its error for each row, small dots for the seeds."""
    panels = [(k, i) for k in range(len(table.shown)) for i in range(len(table.columns))]
    columns = 1 if stacked else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(width, rows * (0.75 + 0.24 * len(table.rows))), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, (k, i) in zip(places, panels):
        for place, row in enumerate(table.rows):
            if cell := row.cells[i]:
                _dot(axes, cell.scores[k], table.factors[k], place)
        axes.set(xlabel=table.title(k), title=table.columns[i], ylim=(len(table.rows) - 0.5, -0.5))
        axes.set_yticks(range(len(table.rows)), [row.label for row in table.rows])
        axes.grid(False, axis="y")
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    about = table.study.worded(f"mean over seeds ± {SHORT[table.spread]}; small: the seeds")
    if said := caution([table.objective]):
        about += f"\n{said}"
    figure.supxlabel(about, fontsize=7, color="#59616A")
    return figure


def _dot(axes: Axes, score: Score, factor: float, place: int) -> None:
    if score.mean is None:
        return
    color, marker = _look(place)
    axes.plot(
        [v * factor for v in score.values], [place + 0.24] * len(score.values), ".", color=color, ms=3, alpha=0.6, mew=0
    )
    error = None if score.error is None else score.error * factor
    axes.errorbar(score.mean * factor, place, xerr=error, fmt=marker, color=color, ms=4, lw=1.2, capsize=2)


def _curves(table: Table, axis: str, curves: Sequence[Line], width: float, stacked: bool) -> Figure:
    """Draw a panel for each column, with a line and an error band for each row."""
    panels, per_line = len(table.columns), 2 if stacked else 4
    rows, columns = (panels, 1) if stacked else (-(-panels // 3), min(panels, 3))
    height = rows * PANEL_IN + 0.17 * -(-len(table.rows) // per_line)
    figure = Figure(figsize=(width, height), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False, sharex=stacked, sharey=True).flat)
    handles: dict[str, Any] = {}
    for axes, column in zip(places, table.columns):
        for line in (line for line in curves if line.column == column):
            (color, marker), every = _look(line.row), max(1, len(line.x) // 8)
            drawn = axes.plot(line.x, line.mean, color=color, marker=marker, markevery=every, ms=3, lw=1.1)
            handles[table.rows[line.row].label] = drawn[0]
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.2, lw=0)
        axes.set_title(column)
    for axes in places[panels:]:
        axes.set_axis_off()
    if wants_log([value for line in curves for value in line.mean]):
        places[0].set_yscale("log")
    if wants_log([line.x[-1] for line in curves]):  # one model may have a hundred times as many as another
        for axes in places:
            axes.set_xscale("log")
    # the lowest panel of each column; a supxlabel would overlap the legend
    for axes in places[panels - columns : panels]:
        axes.set_xlabel(AXES[axis])
    figure.supylabel(table.objective.key, fontsize=8)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=per_line)
    return figure


def _look(row: int) -> tuple[str, str]:
    return CATEGORICAL[row % MAX_COLORED], MARKERS[(row + row // MAX_COLORED) % len(MARKERS)]
