"""The paper's table as a sheet for Markdown, LaTeX and the page, and as a csv with all digits."""

from __future__ import annotations

from dataclasses import replace

from samebits.files import amount
from samebits.sweeps.report.analyse import caution, counts
from samebits.sweeps.report.escape import text
from samebits.sweeps.report.facts import score_notes, spread_text
from samebits.sweeps.report.sheet import Cell, Score, Sheet, csv_text, markdown_table, plus_minus
from samebits.sweeps.report.table import Row, Table


def paper_sheet(table: Table) -> Sheet:
    """Return the table as a sheet."""
    titles = [table.title(k) for k in range(len(table.shown))]
    head = [*table.per, *(f"{column} {title}".strip() for column in table.columns for title in titles), "n"]
    spans = table.columns if table.columns != ("",) else ()
    notes = [*_chosen(table), *_notes(table)]
    return Sheet(head, [_row(table, row) for row in table.rows], len(table.per), spans, notes)


def _row(table: Table, row: Row) -> list[Cell | Score]:
    """Return the cells of a row. A score of fewer seeds or folds than others in its row is marked."""
    none = tuple(Score((), None) for _ in table.shown)
    scores = [score for cell in row.cells for score in (cell.scores if cell else none)]
    most = max(len(score.values) for score in scores)
    few = [f" (n = {n})" if 0 < (n := len(score.values)) < most else "" for score in scores]
    factors = table.factors * len(row.cells)
    shown = [replace(score, factor=factor, note=note) for score, factor, note in zip(scores, factors, few)]
    return [*map(Cell, row.names), *shown, Cell(str(most), most)]


def paper_markdown(table: Table, pictures: list[str]) -> str:
    """Return the table as Markdown with its notes and pictures."""
    sheet = paper_sheet(table)
    parts = [f"# {text(table.study.name)}: the paper's table", markdown_table(sheet)]
    parts += ["\n".join(f"- {text(line)}" for line in sheet.notes)]
    return "\n\n".join([*parts, *(f"![{name}]({name})" for name in pictures)]) + "\n"


def paper_csv(table: Table) -> str:
    """Return a csv with one row per number, not rounded and without the factor of a percentage."""
    head = [*table.per, "column", "score", "mean", "error", "n", "best", "verdict", "chosen", "chosen by", "error is"]
    by = f"{table.objective.key} ({table.objective.mode})"
    by = f"{by}; {said}" if (said := caution([table.objective])) else by
    rows = [
        [*row.names, column, objective.key, score.mean, score.error, len(score.values), score.best or "",
         table.study.worded(score.verdict), cell.chosen, by, spread_text(table.study, table.spread)]
        for row, column, cell in table.cells()
        for objective, score in zip(table.shown, cell.scores)
    ]  # fmt: skip
    return csv_text(head, rows)


def _chosen(table: Table) -> list[str]:
    """Return lines with the selected configuration of each cell and the score that selected it."""
    objective, lines = table.objective, []
    for row, column, cell in table.cells():
        if cell.group and cell.chosen:
            score = plus_minus(cell.group.mean(objective) or 0.0, cell.group.std(objective))
            n = len(cell.group.scores(objective))
            lines.append(f"{row.at(column)}: {cell.chosen} ({objective.key} {score}, n = {n})")
    return lines


def _notes(table: Table) -> list[str]:
    """Return lines that explain how the table was made and what is missing."""
    objective = table.objective
    better = "least" if objective.mode == "min" else "greatest"
    warning = caution([objective])
    lines = [warning] if warning else []
    if any(cell.chosen for _, _, cell in table.cells()):
        lines.append(f"chosen in each row: what has the {better} {objective.key}, mean over {table.study.repeats}")
        if objective.key in {o.key for o in table.shown}:
            lines.append(f"{objective.key} has chosen, too: what is shown of it is too good")
    scores = [score for _, _, cell in table.cells() for score in cell.scores]
    lines += score_notes(table.study, table.spread, scores)
    for row, column, cell in table.cells():
        without = [job for job in cell.jobs if job.score(objective) is None]
        if without:
            found = counts(replace(table.study, jobs=tuple(without)))
            states = ", ".join(f"{n} {status}" for status, n in found.items())
            left = "the choice is among the others" if cell.group else "there is nothing to show"
            what = f"{len(without)} of {amount(len(cell.jobs), 'job')} without {objective.key} ({states}); {left}"
            lines.append(f"{row.at(column)}: {what}")
    return lines
