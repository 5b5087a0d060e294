"""The contents of a report, computed once; report.md, table.tex and the page only format them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.files import amount
from samebits.saved import same_value
from samebits.sweeps.report import review
from samebits.sweeps.report.analyse import (
    Group,
    best_group,
    caution,
    config_keys,
    counts,
    difference,
    groups,
    is_number,
    other_code,
    pareto,
    short_names,
    show,
    value_text,
)
from samebits.sweeps.report.best import best_command
from samebits.sweeps.report.compare import Compared, Comparison, comparisons
from samebits.sweeps.report.importance import importance
from samebits.sweeps.report.read import Job, Objective, Study
from samebits.sweeps.report.review import scores_of_tests, unequal_n
from samebits.sweeps.report.sheet import MARKS, TOO_FEW, Cell, Score, Sheet, plus_minus

REVIEW = "Review"
NOT_SWEPT = "Jobs differ in what was not swept"
OTHER_CODE = "Jobs ran with different code"
NOT_SWEPT_NOTE = (
    "These jobs do not repeat one configuration: conf/ was edited between two commands of the sweep, or a job's "
    "config.yaml. The keys are columns here, and jobs are averaged only where they agree in them."
)
INTERVAL, NEEDED = "95 % interval", "seeds needed"  # columns
COMPARED = ("configuration", "difference", "effect size", INTERVAL, "p", "n", "verdict", NEEDED)
FOLD_NOTE = "the score of a fold is the mean over its seeds; intervals and marks allow for the rows that folds share"
WITHOUT_SCORE = ("failures", "pruned, unfinished")  # columns: numbers of jobs
UNEQUAL_NOTE = "{what} of {most}: fewer {scores} than other configurations have, so the mean is less certain"
MAX_TESTS = 4  # maximum number of test scores beside the objectives; groups.csv has all
MAX_COLUMNS = 8  # maximum number of runs whose configs are compared in one table


@dataclass(frozen=True)
class Best:
    """The best group for one objective. averaged: the runs in the mean, such as 3 seeds. note: another group with a
    better mean over fewer runs; "" if there is none."""

    key: str
    label: str
    score: str
    averaged: str
    command: str
    note: str


@dataclass(frozen=True)
class Section:
    """A section of the report: title, table and text."""

    title: str
    lines: Sequence[str] = ()
    sheet: Sheet | None = None


class Facts:
    """The contents of the report of a study.

    compared: as numbers. groups, jobs: one row per group, best first, and one per job, in the order of the study.
    unlike: differences between jobs that were not swept. comparisons: each group against the best. front: labels of
    the Pareto front, if there are several objectives. differences: differences between the configs of runs. review:
    see review.py.
    """

    def __init__(self, study: Study) -> None:
        self.study, self.compared, self.summary = study, comparisons(study), _summary(study)
        self.unlike, self.best = list(_unlike(study)), list(_best(study))
        self.groups, self.jobs = group_sheet(study, self.compared), _job_sheet(study)
        self.comparisons = [_comparison(study, key, rows) for key, rows in self.compared.items()]
        self.front = [group.label for group in pareto(study)] if len(study.objectives) > 1 else []
        self.importance = importance(study)
        self.differences = None if study.is_sweep else _differences(study)
        self.review = Section(REVIEW, review.lines(study))


def score_text(group: Group, objective: Objective) -> str:
    """Return a group's mean score and its deviation as text."""
    mean = group.mean(objective)
    return "-" if mean is None else plus_minus(mean, group.std(objective))


def _summary(study: Study) -> str:
    found = ", ".join(f"{number} {status}" for status, number in counts(study).items())
    what = "; ".join(f"{o.key} ({'less' if o.mode == 'min' else 'more'} is better)" for o in study.objectives)
    spread = f"± is the standard deviation over {study.repeats}"
    return f"{amount(len(study.jobs), 'job')}: {found}. Score: {what}, of result.json; {spread}."


def _unlike(study: Study) -> Iterable[Section]:
    if keys := difference(study):
        yield Section(NOT_SWEPT, (f"{keys}.", NOT_SWEPT_NOTE))
    if code := other_code(study):
        yield Section(OTHER_CODE, (f"{code}.",))


def _best(study: Study) -> Iterable[Best]:
    for objective in study.objectives:
        if best := best_group(study, objective):
            first = groups(study, objective)[0]
            notes = ["The command trains one of the folds."] if best.folds else []
            if not same_value(first.values, best.values) and first.mean(objective) is not None:
                better, had, of = score_text(first, objective), first.runs(objective), best.runs(objective)
                what = "runs" if study.fold_keys else "seeds"
                notes.append(f"{first.label} has a better mean, {better}, but of {had} of {of} {what} only.")
            said = score_text(best, objective)
            yield Best(objective.key, best.label, said, best.averaged(objective), best_command(best), " ".join(notes))


def group_sheet(study: Study, compared: Compared) -> Sheet:
    """Return a table of means over seeds or folds, the best in bold. Marks show configurations that do not differ
    significantly from the best, or were not tested. Means over folds have an interval."""
    tests = scores_of_tests(study)[:MAX_TESTS]
    keys = config_keys(study) if study.is_sweep else ()  # compared runs may differ in dozens of keys
    verdicts = {(each.group.label, key): each.verdict for key, found in compared.items() for each in found}
    best = {(found.label, o.key) for o in study.objectives if (found := best_group(study, o)) is not None}

    def score(group: Group, objective: Objective) -> Score:
        which = group.label, objective.key
        scores = group.scores(objective)
        verdict = verdicts.get(which, TOO_FEW) if scores and which not in best else ""
        return Score(scores, group.std(objective), which in best, verdict)

    most, most_runs = (
        unequal_n([number(group, study.objective) for group in groups(study)]) if study.is_sweep else None
        for number in (lambda group, objective: len(group.scores(objective)), Group.runs)
    )

    def of_most(number: int, most: int | None) -> Cell:
        return Cell(f"{number} of {most}" if most and 0 < number < most else str(number), number)

    rows: list[list[Cell | Score]] = []
    for group in groups(study):
        n, failed = len(group.scores(study.objective)), len(group.failures(study.objective))
        runs = group.runs(study.objective)
        left = sum(job.score(study.objective) is None for job in group.jobs) - failed
        rows.append([
            *(_value(study, group.jobs[0], keys) if study.is_sweep else [Cell(group.label)]),
            *(score(group, o) for o in study.objectives),
            *(_interval(group, o) for o in study.objectives if study.fold_keys),
            *(Score(group.scores(o), group.std(o)) for o in tests),
            of_most(n, most),
            *([of_most(runs, most_runs)] if study.fold_keys else []),
            *(Cell(str(number or ""), number) for number in (failed, left)),
        ])  # fmt: skip
    names = [short_names(keys)[key] for key in keys] if study.is_sweep else ["run"]
    several = len(study.objectives) > 1
    intervals = [f"{o.key} {INTERVAL}" if several else INTERVAL for o in study.objectives if study.fold_keys]
    runs_head = ["runs"] if study.fold_keys else []
    of_val, of_tests = [o.key for o in study.objectives], [o.key for o in tests]
    head = [*names, *of_val, *intervals, *of_tests, "n", *runs_head, *WITHOUT_SCORE]
    warning = caution(study.objectives)
    scores = [each for row in rows for each in row if isinstance(each, Score)]
    notes = [*([warning] if warning else []), *score_notes(study, "sd", scores)]
    notes += [UNEQUAL_NOTE.format(what="n", most=most, scores="scores")] if most else []
    notes += [UNEQUAL_NOTE.format(what="runs", most=most_runs, scores="runs")] if most_runs and study.fold_keys else []
    return Sheet(head, rows, len(names), notes=notes).without_empty(*WITHOUT_SCORE)


def _interval(group: Group, objective: Objective) -> Cell:
    found = group.interval(objective)
    return Cell("-") if found is None else Cell(f"{found[0]:.3g} to {found[1]:.3g}", found[0])


SPREADS = {
    "sd": "standard deviation over seeds (n - 1)",
    "se": "standard error of the mean over seeds",
    "interval": "half of the mean's 95 % interval over seeds (Student's t)",
}


def spread_text(study: Study, spread: str) -> str:
    """Return the meaning of ±. spread: one of SPREADS."""
    corrected = ", with the correction of Nadeau and Bengio" if study.fold_keys and spread != "sd" else ""
    return study.worded(SPREADS[spread]) + corrected


def score_notes(study: Study, spread: str, scores: Iterable[Score]) -> list[str]:
    """Return notes that explain ± and the marks of these scores. spread: one of SPREADS."""
    scored = [score for score in scores if score.values]
    marks = {score.mark for score in scored}
    lone = any(score.error is None for score in scored)
    return [
        f"shown: mean over n {study.repeats} ± {spread_text(study, spread)}",
        *([FOLD_NOTE] if study.fold_keys else []),
        *([study.worded("without ±: too few seeds for it")] if lone else []),
        *(f"{mark} {study.worded(said)}" for mark, said in MARKS.items() if mark in marks),
    ]


def _value(study: Study, job: Job, keys: Sequence[str]) -> list[Cell]:
    values = [(value_text(study, job, key), study.value(job, key)) for key in keys]
    return [Cell(text, value if is_number(value) else None) for text, value in values]


def _job_sheet(study: Study) -> Sheet:
    keys = study.swept if study.is_sweep else [key for key in study.swept if study.is_repeat(key)]

    def score(job: Job, objective: Objective) -> Cell:
        found, so_far = job.score(objective), job.so_far(objective)
        if found is None and so_far is not None:
            return Cell(f"({show(so_far)} so far)", so_far)
        return Cell("-" if found is None else show(found), found)

    def number(value: Any) -> Cell:
        return Cell(show(value), value) if is_number(value) else Cell("-")

    rows = [
        [
            number(job.number), *_value(study, job, keys), Cell(job.status), *(score(job, o) for o in study.objectives),
            number(job.step), number(job.result.get("seconds")), Cell(job.key, is_code=True),
        ]
        for job in study.jobs
    ]  # fmt: skip
    names = short_names(keys)
    scores = [o.key for o in study.objectives]
    return Sheet(["job", *(names[key] for key in keys), "status", *scores, "step", "seconds", "directory"], rows)


def _comparison(study: Study, key: str, compared: Sequence[Comparison]) -> Section:
    best, objective = compared[0].best, next(o for o in study.objectives if o.key == key)
    others = any(objective.sign * each.difference < 0 for each in compared)
    whose = (
        f" of those with most {'runs' if study.fold_keys else 'seeds'}, {best.averaged(objective)}" if others else ""
    )
    note = (
        f"Each row is compared with {best.label}, which has the best mean{whose}. Effect size: the difference divided "
        "by a standard deviation: of the differences between runs of one seed (d_z, Cohen 1988) or, if seeds differ, "
        "of the runs (g, Hedges 1981). Interval: by Student's t for pairs of runs, otherwise by Welch's; it is wider "
        "because the best was chosen by these scores. p is corrected for all rows and for this choice (max-T, "
        'step-down, normal scores): the probability of any false "differs" in this table is 5 %. '
    )
    if study.fold_keys:
        note = note.replace("of one seed", "of one fold").replace("if seeds", "if folds")
        note += "Variances are corrected for the training rows that folds share (Nadeau and Bengio 2003)."
    else:
        note += "Seeds needed: the number with which 80 % of such tables find this difference."

    def row(each: Comparison) -> list[Cell]:
        size = "-" if each.effect is None else f"{each.effect_name} {each.effect:+.2g}"
        interval = f"none below 3 {study.repeats}" if each.low is None else f"{each.low:+.3g} to {each.high:+.3g}"
        p = "-" if each.p is None else f"{each.p:.2g}" if each.p >= 1e-4 else "below 0.0001"
        return [
            Cell(each.group.label), Cell(f"{each.difference:+.3g}", each.difference), Cell(size, each.effect),
            Cell(interval, each.low), Cell(p, each.p), Cell(f"{each.n} {'pairs' if each.paired else 'each'}", each.n),
            Cell(study.worded(each.verdict)), Cell("-" if each.needed is None else str(each.needed), each.needed),
        ]  # fmt: skip

    sheet = Sheet(COMPARED, [row(each) for each in compared])
    return Section(f"Differences from the best: {key}", (note,), sheet.without(NEEDED) if study.fold_keys else sheet)


def _differences(study: Study) -> Section:
    shown = study.jobs[:MAX_COLUMNS]
    rows = [[Cell(key, is_code=True), *(Cell(show(study.value(job, key))) for job in shown)] for key in study.swept]
    more = len(study.jobs) - len(shown)
    left = (f"{amount(more, 'more run')} in report.csv.",) if more else ()
    return Section("Differences of the configs", left, Sheet(["", *(job.key for job in shown)], rows))
