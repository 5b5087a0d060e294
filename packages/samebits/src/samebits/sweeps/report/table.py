"""The paper's table: a row for each value of the keys that are named. Within a row all other keys, seeds apart, are
chosen by the study's objective, the mean over seeds on validation; shown are other scores of what was chosen."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.errors import ConfigError
from samebits.saved import is_seed
from samebits.sweeps.report.analyse import (
    Group,
    best_of_most_seeds,
    config_keys,
    groups,
    is_number,
    short_names,
    show,
    value_text,
)
from samebits.sweeps.report.compare import comparisons
from samebits.sweeps.report.inference import mean_interval
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
    """group: what was chosen, None where no job has the score that chooses. scores: one for each shown score."""

    group: Group | None
    chosen: str  # lr=0.01 width=64; "" where there was no choice
    jobs: tuple[Job, ...]  # chosen from these
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Row:
    names: tuple[str, ...]  # the values of Table.per
    label: str  # the same in one text, a number with its key: mlp lr=0.1
    cells: tuple[Cell | None, ...]  # one for each column; None: no such job

    def at(self, column: str) -> str:
        return f"{self.label} {column}".strip()


@dataclass(frozen=True)
class Table:
    study: Study
    per: tuple[str, ...]
    columns: tuple[str, ...]  # labels; one that is "" without --columns
    shown: tuple[Objective, ...]
    factors: tuple[float, ...]  # of each shown score: 100 for a percentage
    spread: str
    rows: tuple[Row, ...]

    @property
    def objective(self) -> Objective:
        return self.study.objective

    def title(self, k: int) -> str:
        """Of the k-th shown score."""
        return self.shown[k].key + (" [%]" if self.factors[k] == 100 else "")

    def cells(self) -> list[tuple[Row, str, Cell]]:
        """(row, column's label, cell) of all that have jobs."""
        return [(row, c, cell) for row in self.rows for c, cell in zip(self.columns, row.cells) if cell]


def table(study: Study, ask: Ask) -> Table:
    """Raises ConfigError for an unknown key, a seed as a row, a score that no finished job has."""
    asked = (("--rows", ask.per), ("--columns", ask.columns))
    per, across = ([key_of(study, flag, key) for key in keys] for flag, keys in asked)
    if twice := set(per) & set(across):
        raise ConfigError(f"--columns {min(twice)}: is a key of --rows already; name another key, or leave it out")
    shown = tuple(shown_score(study, text) for text in ask.show)
    if strange := [key for key in ask.percent if key not in {o.key for o in shown}]:
        raise ConfigError(f"--percent {strange[0]}: is not shown; --metrics has {', '.join(o.key for o in shown)}")
    places: dict[tuple[str, ...], dict[tuple[str, ...], list[Job]]] = {}  # row -> column -> its jobs
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
    """The key or config group of that name, or of that unique ending among the swept ones."""
    swept = config_keys(study)
    short = {name: key for key, name in short_names(swept).items()}
    given = {o.partition("=")[0].lstrip("+") for job in study.jobs for o in job.overrides}
    key = short.get(text, text)
    if is_seed(key):
        raise ConfigError(f"{flag} {text}: scores are means over seeds; name another key, such as {', '.join(swept)}")
    if key not in swept and key not in given and not any(key in job.config for job in study.jobs):
        raise ConfigError(
            f"{flag} {text}: no job was given this key; they differ in {', '.join(swept) or 'seeds alone'}"
        )
    return key


def shown_score(study: Study, text: str) -> Objective:
    """KEY:min, KEY:max, or KEY where its name says what is better."""
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
    """The configuration with the best mean of the objective among those with the most scored seeds."""
    objective = study.objective
    return best_of_most_seeds(groups(replace(study, jobs=tuple(jobs)), objective), objective)


def spread_of(values: Sequence[float], spread: str) -> float | None:
    """The error of a mean, one of facts.SPREADS."""
    if spread == "interval":
        interval = mean_interval(values)
        return None if interval is None else (interval[1] - interval[0]) / 2
    if len(values) < 2:
        return None
    return statistics.stdev(values) / (math.sqrt(len(values)) if spread == "se" else 1)


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
    return Cell(group, chosen, tuple(jobs), tuple(Score(each, spread_of(each, spread)) for each in values))


def _compared(study: Study, shown: Sequence[Objective], cells: Sequence[Cell | None]) -> list[Cell | None]:
    """The cells of one column, each score compared with the best one of its kind."""
    chosen = [cell.group for cell in cells if cell and cell.group]
    against = [verdicts(study, chosen, objective) for objective in shown]

    def with_verdicts(cell: Cell) -> Cell:
        found = [by_job.get(cell.group.jobs[0].key, "") if cell.group else "" for by_job in against]
        scores = (replace(s, best=v == BEST, verdict="" if v == BEST else v) for s, v in zip(cell.scores, found))
        return replace(cell, scores=tuple(scores))

    return [cell and with_verdicts(cell) for cell in cells]


def verdicts(study: Study, chosen: Sequence[Group], objective: Objective) -> dict[str, str]:
    """{first job's key: BEST, or the verdict against the best}, of those with a score; {} where fewer than two have."""
    scored = [group for group in chosen if group.scores(objective)]
    if len(scored) < 2:
        return {}
    jobs = tuple(job for group in scored for job in group.jobs)
    rows = comparisons(replace(study, jobs=jobs, objectives=(objective,))).get(objective.key, ())
    best = rows[0].best if rows else min(scored, key=lambda group: objective.sign * (group.mean(objective) or 0.0))
    found = {group.jobs[0].key: TOO_FEW for group in scored}  # of one seed each, which no test takes
    return found | {row.group.jobs[0].key: row.verdict for row in rows} | {best.jobs[0].key: BEST}


def _tuned(study: Study, cells: Sequence[Sequence[Job]]) -> list[str]:
    """The keys that differ within some cell: of these a value is chosen."""
    keys = config_keys(study)
    return [key for key in keys if any(len({str(study.value(job, key)) for job in jobs}) > 1 for jobs in cells)]


def _text(study: Study, job: Job, key: str) -> str:
    value = study.value(job, key)
    return "default" if value is None and key not in job.config else show(value)


def _label(study: Study, job: Job, keys: Sequence[str]) -> str:
    names = short_names(keys)
    bare = {key: not is_number(study.value(job, key)) for key in keys}
    return " ".join(("" if bare[key] else f"{names[key]}=") + _text(study, job, key) for key in keys)
