"""The paper's table: one row per value of the given keys.

Within a row, all other keys except seeds and folds are selected by the study's objective (the mean over seeds or folds
on validation). The table shows other scores of the selected configuration.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.errors import ConfigError
from samebits.sweeps.report.analyse import (
    Group,
    best_group,
    best_of_most_seeds,
    config_keys,
    groups,
    is_number,
    short_names,
    show,
    value_text,
)
from samebits.sweeps.report.compare import compared
from samebits.sweeps.report.inference import mean_interval, standard_error
from samebits.sweeps.report.read import Job, Objective, Study
from samebits.sweeps.report.sheet import TOO_FEW, Score

BEST = "best"
LESS, MORE = re.compile(r"loss|error|perplexity"), re.compile(r"accuracy|auroc|f1|iou")


@dataclass(frozen=True)
class Ask:
    """As typed. show: scores, KEY or KEY:min|max; percent: KEY. spread: one of facts.SPREADS. against: axes of the
    curves, of AXES. inches: a column's and a page's width."""

    per: Sequence[str]
    show: Sequence[str]
    columns: Sequence[str] = ()
    percent: Sequence[str] = ()
    spread: str = "sd"
    against: Sequence[str] = ("step",)
    inches: tuple[float, float] = (3.25, 6.75)


@dataclass(frozen=True)
class Cell:
    """A cell. group: the selected configuration, None if no job has the objective's score. scores: one per shown
    score."""

    group: Group | None
    chosen: str  # e.g. lr=0.01 width=64; "" if there was no choice
    jobs: tuple[Job, ...]  # the candidates
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    names: tuple[str, ...]  # the values of Table.per
    label: str  # the values as one text, numbers with their keys: mlp lr=0.1
    cells: tuple[Cell | None, ...]  # one per column; None if it has no job

    def at(self, column: str) -> str:
        """Return the row's label in a column."""
        return f"{self.label} {column}".strip()


@dataclass(frozen=True)
class Table:
    """The paper's table."""

    study: Study
    per: tuple[str, ...]
    columns: tuple[str, ...]  # labels; one empty label without --columns
    shown: tuple[Objective, ...]
    factors: tuple[float, ...]  # factor of each shown score: 100 for a percentage
    spread: str
    rows: tuple[Row, ...]

    @property
    def objective(self) -> Objective:
        """Return the objective that selects configurations."""
        return self.study.objective

    def title(self, k: int) -> str:
        """Return the title of the k-th shown score."""
        return self.shown[k].key + (" [%]" if self.factors[k] == 100 else "")

    def cells(self) -> list[tuple[Row, str, Cell]]:
        """Return (row, label of the column, cell) of all cells that have jobs."""
        return [(row, c, cell) for row in self.rows for c, cell in zip(self.columns, row.cells) if cell]


def table(study: Study, ask: Ask) -> Table:
    """Return the table. Raise ConfigError for an unknown key, a seed or a fold as a row, or a score that no finished
    job has."""
    asked = (("--rows", ask.per), ("--columns", ask.columns))
    per, across = ([key_of(study, flag, key) for key in keys] for flag, keys in asked)
    if twice := set(per) & set(across):
        raise ConfigError(f"--columns {min(twice)}: is a key of --rows already; name another key, or leave it out")
    shown = tuple(shown_score(study, text) for text in ask.show)
    if strange := [key for key in ask.percent if key not in {o.key for o in shown}]:
        raise ConfigError(f"--percent {strange[0]}: is not shown; --metrics has {', '.join(o.key for o in shown)}")
    places: dict[tuple[str, ...], dict[tuple[str, ...], list[Job]]] = {}  # {row: {column: jobs}}
    first: dict[tuple[str, ...], Job] = {}
    columns: dict[tuple[str, ...], str] = {}
    for job in study.jobs:
        row, column = (tuple(str(study.value(job, key)) for key in keys) for keys in (per, across))
        first.setdefault(row, job)
        columns.setdefault(column, _label(study, job, across))
        places.setdefault(row, {}).setdefault(column, []).append(job)
    tuned = _tuned(study, [jobs for row in places.values() for jobs in row.values()])
    found = [
        _compared(study, shown, [_cell(study, row.get(column), tuned, shown, ask.spread) for row in places.values()])
        for column in columns
    ]
    rows = tuple(
        Row(tuple(_text(study, job, key) for key in per), _label(study, job, per), tuple(cells))
        for job, cells in zip(first.values(), zip(*found))
    )
    factors = tuple(100.0 if o.key in ask.percent else 1.0 for o in shown)
    return Table(study, tuple(short_names(per).values()), tuple(columns.values()), shown, factors, ask.spread, rows)


def key_of(study: Study, flag: str, text: str) -> str:
    """Return the swept key or config group with this name or this unique ending."""
    swept = config_keys(study)
    short = {name: key for key, name in short_names(swept).items()}
    given = {o.partition("=")[0].lstrip("+") for job in study.jobs for o in job.overrides}
    key = short.get(text, text)
    if study.is_repeat(key):
        what = f"{flag} {text}: scores are means over {study.repeats}"
        raise ConfigError(f"{what}; name another key, such as {', '.join(swept)}")
    if key not in swept and key not in given and not any(key in job.config for job in study.jobs):
        raise ConfigError(
            f"{flag} {text}: no job was given this key; they differ in {', '.join(swept) or f'{study.repeats} alone'}"
        )
    return key


def shown_score(study: Study, text: str) -> Objective:
    """Parse KEY:min, KEY:max, or KEY if its name implies the mode."""
    key, _, mode = text.partition(":")
    done = [job for job in study.jobs if job.status == "finished"]
    if done and not any(job.score(Objective(key, "min")) is not None for job in done):
        known = ", ".join(sorted({k for job in done for k in job.result if "/" in k}))
        raise ConfigError(f"--metrics {key}: no run has this score; they have {known}")
    if not mode:
        same = [o.mode for o in study.objectives if o.key.partition("/")[2] == key.partition("/")[2]]
        guess = "min" if LESS.search(key) else "max" if MORE.search(key) else ""
        mode = same[0] if same else guess
    if mode not in ("min", "max"):
        raise ConfigError(f"--metrics {text}: is less or more of it better? write {key}:min or {key}:max")
    return Objective(key, mode)


def choose(study: Study, jobs: Sequence[Job]) -> Group | None:
    """Return the configuration with the best mean of the objective among those with the most scored runs."""
    objective = study.objective
    return best_of_most_seeds(groups(replace(study, jobs=tuple(jobs)), objective), objective)


def spread_of(values: Sequence[float], spread: str, test_to_train: float = 0.0) -> float | None:
    """Return the error of a mean. spread: one of facts.SPREADS. test_to_train: see inference.standard_error."""
    if spread == "interval":
        interval = mean_interval(values, test_to_train)
        return None if interval is None else (interval[1] - interval[0]) / 2
    if len(values) < 2:
        return None
    return standard_error(values, test_to_train) if spread == "se" else statistics.stdev(values)


def _cell(
    study: Study, jobs: Sequence[Job] | None, tuned: Sequence[str], shown: Sequence[Objective], spread: str
) -> Cell | None:
    if jobs is None:
        return None
    group = choose(study, jobs)
    if group is None:
        return Cell(None, "", tuple(jobs), tuple(Score((), None) for _ in shown))
    job, names = group.jobs[0], short_names(tuned)
    chosen = " ".join(f"{names[key]}={value_text(study, job, key)}" for key in tuned if not study.lacks(job, key))
    values = [group.scores(objective) for objective in shown]
    errors = [spread_of(each, spread, group.test_to_train) for each in values]
    return Cell(group, chosen, tuple(jobs), tuple(map(Score, values, errors)))


def _compared(study: Study, shown: Sequence[Objective], cells: Sequence[Cell | None]) -> list[Cell | None]:
    """Return the cells of one column, with each score compared with the best one."""
    chosen = [cell.group for cell in cells if cell and cell.group]
    against = [verdicts(study, chosen, objective) for objective in shown]

    def with_verdicts(cell: Cell) -> Cell:
        found = [by_job.get(cell.group.jobs[0].key, "") if cell.group else "" for by_job in against]
        scores = (replace(s, best=v == BEST, verdict="" if v == BEST else v) for s, v in zip(cell.scores, found))
        return replace(cell, scores=tuple(scores))

    return [cell and with_verdicts(cell) for cell in cells]


def verdicts(study: Study, chosen: Sequence[Group], objective: Objective) -> dict[str, str]:
    """Return {key of the first job: BEST, or the result of the comparison with the best} for groups with a score; {}
    for fewer than two such groups."""
    scored = [group for group in chosen if group.scores(objective)]
    if len(scored) < 2:
        return {}
    among = replace(study, jobs=tuple(job for group in scored for job in group.jobs))
    rows = compared(among, objective)
    best = rows[0].best if rows else best_group(among, objective)
    found = {group.jobs[0].key: TOO_FEW for group in scored}  # one seed each is too few for a test
    found |= {row.group.jobs[0].key: row.verdict for row in rows}
    return found | ({best.jobs[0].key: BEST} if best else {})


def _tuned(study: Study, cells: Sequence[Sequence[Job]]) -> list[str]:
    """Return the keys that differ within a cell; their values are selected."""
    keys = config_keys(study)
    return [key for key in keys if any(len({str(study.value(job, key)) for job in jobs}) > 1 for jobs in cells)]


def _text(study: Study, job: Job, key: str) -> str:
    value = study.value(job, key)
    return "default" if value is None and key not in job.config else show(value)


def _label(study: Study, job: Job, keys: Sequence[str]) -> str:
    names = short_names(keys)
    bare = {key: not is_number(study.value(job, key)) for key in keys}
    return " ".join(("" if bare[key] else f"{names[key]}=") + _text(study, job, key) for key in keys)
