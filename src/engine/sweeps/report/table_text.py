"""The paper's table as Markdown, csv, LaTeX, and as data of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.sweeps.report.analyse import counts
from engine.sweeps.report.choice import caution
from engine.sweeps.report.digits import plus_minus, tex_plus_minus
from engine.sweeps.report.escape import Markdown, text
from engine.sweeps.report.table import SPREADS, Row, Score, Table
from engine.sweeps.report.text import csv_text, markdown_table, tex

TITLE = "The paper's table"


def paper_markdown(table: Table, pictures: Sequence[str] = ()) -> str:
    def shown(score: Score, factor: float, n: str) -> Markdown:
        plain = number(score, factor) + score.mark
        return Markdown((f"**{plain}**" if score.best else plain) + n)

    body = markdown_table(_head(table), _rows(table, shown))
    beneath = [*(f"- {text(line)}" for line in chosen_lines(table)), *(f"- {text(line)}" for line in notes(table))]
    parts = [f"# {text(table.study.name)}: {TITLE.lower()}", body, "\n".join(beneath)]
    return "\n\n".join([*parts, *(f"![{name}]({name})" for name in pictures)]) + "\n"


def paper_csv(table: Table) -> str:
    """A row for each number, unrounded and without the factor of a percentage."""
    head = [*table.per, "column", "score", "mean", "error", "n", "best", "verdict", "chosen", "chosen by", "error is"]
    by = f"{table.objective.key} ({table.objective.mode})"
    by = f"{by}; {caution([table.objective])}" if caution([table.objective]) else by
    rows = [
        [*row.names, column, objective.key, score.mean, score.error, len(score.values), score.best or "",
         score.verdict, cell.chosen, by, SPREADS[table.spread]]
        for row, column, cell in table.cells()
        for objective, score in zip(table.shown, cell.scores)
    ]  # fmt: skip
    return csv_text(head, rows)


def paper_latex(table: Table) -> str:
    """booktabs; the notes stand beneath, in a minipage: for a table environment, or anywhere."""

    def shown(score: Score, factor: float, n: str) -> str:
        if score.mean is None:
            return "--"
        plain = tex_plus_minus(score.mean * factor, score.error and score.error * factor)
        plain = rf"\mathbf{{{plain}}}" if score.best else plain
        mark = {"": "", "†": r"^\dagger", "‡": r"^\ddagger"}[score.mark]
        return f"${plain}{mark}$" + tex(n)

    width, wide = len(table.shown), len(table.columns)
    first = [*map(tex, table.per)]
    head = " & ".join([*first, *wide * [tex(table.title(k)) for k in range(width)], "$n$"]) + r" \\"
    lines = [head]
    if table.columns != ("",):
        spans = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{tex(column)}}}" for column in table.columns)
        rules = " ".join(
            rf"\cmidrule(lr){{{len(first) + 1 + i * width}-{len(first) + (i + 1) * width}}}" for i in range(wide)
        )
        lines = [" & " * len(first) + spans + r" & \\", rules, head]
    rows = [
        " & ".join(tex(c) if i < len(first) else c for i, c in enumerate(row)) + r" \\" for row in _rows(table, shown)
    ]
    layout = "l" * len(first) + "r" * (width * wide + 1)
    symbols = {"±": r"$\pm$", "†": r"$^\dagger$", "‡": r"$^\ddagger$"}
    beneath = [tex(line) for line in [*chosen_lines(table), *notes(table)]]
    for sign, command in symbols.items():
        beneath = [line.replace(sign, command) for line in beneath]
    parts = [
        "% \\usepackage{booktabs}",
        *([f"% {said}"] if (said := caution([table.objective])) else []),
        rf"\begin{{tabular}}{{{layout}}}", r"\toprule", *lines, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}",
        r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright",
        " \\\\\n".join(beneath), r"\end{minipage}",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def paper_data(table: Table) -> dict[str, Any]:
    """For report.html: {title, head, rows of {text, best}, notes}."""

    def shown(score: Score, factor: float, n: str) -> dict[str, Any]:
        return {"text": number(score, factor) + score.mark + n, "best": score.best}

    rows = [[c if isinstance(c, dict) else {"text": c, "best": False} for c in row] for row in _rows(table, shown)]
    return {"title": TITLE, "head": _head(table), "rows": rows, "notes": [*chosen_lines(table), *notes(table)]}


def number(score: Score, factor: float) -> str:
    if score.mean is None:
        return "-"
    return plus_minus(score.mean * factor, score.error and score.error * factor)


def chosen_lines(table: Table) -> list[str]:
    """What was chosen in each cell, by which score."""
    objective, lines = table.objective, []
    for row, column, cell in table.cells():
        if cell.group and cell.chosen:
            score = plus_minus(cell.group.mean(objective) or 0.0, cell.group.std(objective))
            n = len(cell.group.scores(objective))
            lines.append(f"{row.at(column)}: {cell.chosen} ({objective.key} {score}, n = {n})")
    return lines


def notes(table: Table) -> list[str]:
    """How the table came about, and what is missing in it: a line each."""
    objective = table.objective
    better = "least" if objective.mode == "min" else "greatest"
    warning = caution([objective])
    lines = [warning] if warning else []
    if any(cell.chosen for _, _, cell in table.cells()):
        lines.append(f"chosen in each row: what has the {better} {objective.key}, mean over seeds")
        if objective.key in {o.key for o in table.shown}:
            lines.append(f"{objective.key} has chosen, too: what is shown of it is too good")
    lines.append(f"shown: mean over n seeds ± {SPREADS[table.spread]}")
    scores = [score for _, _, cell in table.cells() for score in cell.scores]
    if any(score.values and score.error is None for score in scores):
        lines.append("without ±: too few seeds for it")
    marks = {score.mark for score in scores}
    said = {"†": "not told from the best by its seeds", "‡": "too few seeds to tell it from the best"}
    lines += [f"{mark} {said[mark]}" for mark in said if mark in marks]
    for row, column, cell in table.cells():
        without = [job for job in cell.jobs if job.score(objective) is None]
        if without:
            found = counts(replace(table.study, jobs=tuple(without)))
            states = ", ".join(f"{n} {status}" for status, n in found.items())
            left = "the choice is among the others" if cell.group else "there is nothing to show"
            what = f"{len(without)} of {len(cell.jobs)} jobs have no {objective.key} ({states}); {left}"
            lines.append(f"{row.at(column)}: {what}")
    return lines


def _head(table: Table) -> list[str]:
    titles = [table.title(k) for k in range(len(table.shown))]
    return [*table.per, *(f"{column} {title}".strip() for column in table.columns for title in titles), "n"]


def _rows(table: Table, shown: Any) -> list[list[Any]]:
    return [_row(table, row, shown) for row in table.rows]


def _row(table: Table, row: Row, shown: Any) -> list[Any]:
    """A row's cells by `shown(score, factor, n)`; n: " (n = 2)" where a score has fewer seeds than the row."""
    none = tuple(Score((), None) for _ in table.shown)
    scores = [score for cell in row.cells for score in (cell.scores if cell else none)]
    most = max(len(score.values) for score in scores)
    factors = table.factors * len(row.cells)
    few = [f" (n = {len(s.values)})" if 0 < len(s.values) < most else "" for s in scores]
    return [*row.names, *(shown(s, factor, n) for s, factor, n in zip(scores, factors, few)), str(most)]
