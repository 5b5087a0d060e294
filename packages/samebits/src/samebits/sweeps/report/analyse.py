"""Analysis for the report: groups of jobs over seeds, the best group, differences between jobs, values as text."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from samebits.code import by_code
from samebits.config import written
from samebits.errors import ConfigError
from samebits.files import amount
from samebits.runs import NOT_COMPUTED
from samebits.saved import folds_of, is_seed, same_value
from samebits.sweeps.report.inference import mean_interval
from samebits.sweeps.report.read import Job, Objective, Study

FLAG = "--choose-on-test"
FEW_KEYS = 3  # maximum number of keys that are added to make equal labels unique


@dataclass(frozen=True)
class Group:
    """Jobs that differ only in the seed, or in the fold of a cross-validation."""

    values: dict[str, Any]  # {swept key: value} without seeds and folds
    jobs: tuple[Job, ...]
    label: str  # lr=0.001 width=64
    unswept: Mapping[str, Any] = field(default_factory=dict)  # values of keys that were not overridden
    folds: tuple[str, ...] = ()  # Study.fold_keys
    objectives: tuple[Objective, ...] = ()  # Study.objectives; see `counts`

    def scores(self, objective: Objective) -> list[float]:
        """Return one score per seed; with folds, one per fold, the mean over the seeds of this fold. A repeated job
        with the same seed adds no information, so it is not counted."""
        return list(self.scores_by_fold(objective).values())

    def scores_by_fold(self, objective: Objective) -> dict[str, float]:
        """Return {fold as text: mean score over its seeds}; without folds, {seeds as text: score}."""
        return {fold: statistics.fmean(scores.values()) for fold, scores in self._scores(objective).items()}

    def runs(self, objective: Objective) -> int:
        """Return the number of scored runs, each seed of each fold."""
        return sum(map(len, self._scores(objective).values()))

    def averaged(self, objective: Objective) -> str:
        """Return the runs in the mean: 3 seeds, 5 folds x 2 seeds, or 5 folds, 9 runs if a fold has fewer seeds."""
        per_fold = [len(scores) for scores in self._scores(objective).values()]
        if not self.folds or max(per_fold, default=1) == 1:
            return amount(len(per_fold), "fold" if self.folds else "seed")
        seeds = f" x {per_fold[0]} seeds" if len({*per_fold}) == 1 else f", {sum(per_fold)} runs"
        return amount(len(per_fold), "fold") + seeds

    def fold_of(self, job: Job) -> str:
        """Return the fold of one of the jobs as text; without folds, its seeds."""
        keys = (*self.folds, *(folds_of(key) or "" for key in self.folds))
        return repr([job.config.get(key) for key in keys]) if self.folds else self._seeds_of(job)

    @property
    def test_to_train(self) -> float:
        """Return the ratio of validation to training rows in a cross-validation, 1 / (folds - 1); otherwise 0."""
        counts = [job.config.get(folds_of(key) or "") for job in self.jobs for key in self.folds]
        return max((1 / (n - 1) for n in counts if isinstance(n, int) and n > 1), default=0.0)

    def counts(self, job: Job) -> bool:
        """Return False if none of the objectives that the job has is finite: its means include no other score of it
        either. A run that diverged may have an accuracy."""
        scores = [job.score(objective) for objective in self.objectives if objective.key in job.result]
        return not scores or any(score is not None for score in scores)

    def _scores(self, objective: Objective) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for fold, seed, job in self._repeats:
            if self.counts(job) and (score := job.score(objective)) is not None:
                found.setdefault(fold, {}).setdefault(seed, score)
        return found

    @cached_property
    def _repeats(self) -> list[tuple[str, str, Job]]:
        """Return (fold as text, seeds as text, job) for each job."""
        return [(self.fold_of(job), self._seeds_of(job), job) for job in self.jobs]

    def _seeds_of(self, job: Job) -> str:
        seeds = sorted((key, value) for key, value in job.config.items() if is_seed(key))
        return repr(seeds) if seeds else job.key

    def mean(self, objective: Objective) -> float | None:
        """Return the mean score; None if there are no scores."""
        scores = self.scores(objective)
        return statistics.fmean(scores) if scores else None

    def std(self, objective: Objective) -> float | None:
        """Return the sample standard deviation (n - 1); None for fewer than two scores."""
        scores = self.scores(objective)
        return statistics.stdev(scores) if len(scores) > 1 else None

    def interval(self, objective: Objective) -> tuple[float, float] | None:
        """Return the 95 % interval of the mean; None for fewer than three scores. Over folds it has the correction of
        Nadeau and Bengio."""
        return mean_interval(self.scores(objective), self.test_to_train)

    def failures(self, objective: Objective) -> list[Job]:
        """Return the jobs that ended without a score: failed, killed, or finished with a score that is not finite."""
        return [job for job in self.jobs if is_failure(job, objective)]


def is_failure(job: Job, objective: Objective) -> bool:
    """Return True if the job ended without a finite score."""
    return job.died or (job.status == "finished" and job.score(objective) is None)


def config_keys(study: Study) -> tuple[str, ...]:
    """Return the swept keys without seeds and folds; they identify configurations."""
    return tuple(key for key in study.swept if not study.is_repeat(key))


def groups(study: Study, objective: Objective | None = None) -> list[Group]:
    """Return the groups sorted by their mean of the objective (None: the first one), best first, without a score
    last."""
    objective = objective or study.objective

    def rank(group: Group) -> tuple[bool, float]:
        mean = group.mean(objective)
        return mean is None, 0.0 if mean is None else objective.sign * mean

    return sorted(_groups(study), key=rank)


@lru_cache(4)
def _groups(study: Study) -> tuple[Group, ...]:
    found: dict[str, list[Job]] = {}
    keys = config_keys(study)
    for job in study.jobs:
        found.setdefault(repr([study.value(job, key) for key in keys]), []).append(job)
    common = set.intersection(*(set(job.overrides) for job in study.jobs))
    made = []
    for jobs in found.values():
        values = {key: study.value(jobs[0], key) for key in keys if not study.lacks(jobs[0], key)}
        name = _sweep_label(study, values, jobs) if study.is_sweep else _run_label(study, jobs[0], common)
        silent = {key: jobs[0].config[key] for key in study.unswept if key in jobs[0].config}
        made.append(Group(values, tuple(jobs), name, silent, study.fold_keys, study.objectives))
    doubled = Counter(group.label for group in made)
    made = [g if doubled[g.label] == 1 else replace(g, label=_told_apart(g, made)) for g in made]
    return tuple(g if g.label else replace(g, label=g.jobs[0].key) for g in made)


def best_group(study: Study, objective: Objective | None = None) -> Group | None:
    """Return the group with the best mean of the objective (None: the first one). In a sweep only groups with the most
    scored runs are considered, so that one lucky seed does not win."""
    objective = objective or study.objective
    ranked = groups(study, objective)
    if not study.is_sweep:
        return next((group for group in ranked if group.scores(objective)), None)
    return best_of_most_seeds(ranked, objective)


def best_of_most_seeds(ranked: Sequence[Group], objective: Objective) -> Group | None:
    """Return the first group of `ranked` among those with the most scored runs; None if no group has a score."""
    most = max((group.runs(objective) for group in ranked), default=0)
    return next((group for group in ranked if most and group.runs(objective) == most), None)


def pareto(study: Study) -> list[Group]:
    """Return the Pareto front: groups with a mean in each objective that no other group dominates."""
    scored = []  # (group, its means, signed so that lower is better)
    for group in groups(study):
        means = [group.mean(o) for o in study.objectives]
        losses = [o.sign * m for o, m in zip(study.objectives, means) if m is not None]
        if len(losses) == len(means):
            scored.append((group, losses))

    def dominates(a: list[float], b: list[float]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b))

    return [group for group, losses in scored if not any(dominates(other, losses) for _, other in scored)]


def difference(study: Study) -> str | None:
    """Return a line about keys that differ between jobs although they were not swept; None if there are none."""
    parts = []
    for key in study.unswept:
        jobs: dict[str, list[int]] = {}
        for job in study.jobs:
            if job.config:
                jobs.setdefault(show(study.value(job, key)), []).append(job.number)
        counted = [
            f"{text} in {amount(len(n), 'job')} ({', '.join(map(str, n[:5]))}{', ...' * (len(n) > 5)})"
            for text, n in jobs.items()
        ]
        parts.append(f"{key} is {', '.join(counted)}")
    return "; ".join(parts) or None


def other_code(study: Study) -> str | None:
    """Return a line about jobs that ran with different code; None if all ran with the same code."""
    found = [(job.number, code) for job in study.jobs for code in job.code]
    return by_code(found) if len({code for _, code in found}) > 1 else None


def counts(study: Study) -> dict[str, int]:
    """Return {status: number of jobs}, finished first."""
    order = ("finished", "running", "queued", "failed", "killed", "pruned", "preempted", "interrupted")
    found = [job.status for job in study.jobs]
    return {status: found.count(status) for status in dict.fromkeys([*order, *found]) if status in found}


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return {key: its shortest unique ending}: optim.lr -> lr if no other key ends with lr."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        names[key] = next(end for end in ends if end == key or not any(o != key and _ends(o, end) for o in keys))
    return names


def _ends(key: str, end: str) -> bool:
    return key == end or key.endswith(f".{end}")


def _sweep_label(study: Study, values: dict[str, Any], jobs: Sequence[Job]) -> str:
    names = short_names(tuple(values))
    words = [f"{names[key]}={show(value)}" for key, value in values.items()]
    return " ".join(words) or (f"all {study.repeats}" if len(jobs) > 1 else jobs[0].key)


def _run_label(study: Study, job: Job, common: set[str]) -> str:
    """Return the overrides of this run that not all runs have, without the seed; "" if there are none."""
    keys = {o.partition("=")[0].lstrip("+"): o for o in job.overrides if o not in common and o[:5] != "hydra"}
    told = {
        key: f"{key}={show(study.value(job, key))}" if "=" in override else override
        for key, override in keys.items()
        if not study.is_repeat(key)
        and (key in study.swept if key in job.config else key.split(".")[0] not in NOT_COMPUTED)
    }
    return " ".join(told.values())


def _told_apart(group: Group, all_groups: Sequence[Group]) -> str:
    """Return a label that is unique among groups with equal labels: with the values in which they differ."""
    alike = [other.values for other in all_groups if other.label == group.label]
    absent = object()
    keys = [k for k, v in group.values.items() if not all(same_value(one.get(k, absent), v) for one in alike)]
    shown = [f"{key}={v if isinstance(v := group.values[key], float) else show(v)}" for key in keys[:FEW_KEYS]]
    if len({repr([one.get(key) for key in keys[:FEW_KEYS]]) for one in alike}) < len(alike) or not shown:
        shown.append(group.jobs[0].key)
    return f"{group.label} ({', '.join(shown)})" if group.label else " ".join(shown)


def value_text(study: Study, job: Job, key: str) -> str:
    """Return a job's value of a swept key as text; "-" if it does not have the key."""
    return "-" if study.lacks(job, key) else show(study.value(job, key))


def show(value: Any) -> str:
    """Return a value as text: floats with 4 digits, other types as in yaml."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(show, value))}]"
    return written(value) if value is None or isinstance(value, bool) else str(value)


def is_number(value: Any) -> bool:
    """Return True for an int or a float, not for a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def numbers(values: Iterable[Any]) -> list[float] | None:
    """Return the values as floats without None; return None unless all are numbers and at least two differ."""
    given = [value for value in values if value is not None]
    return [float(v) for v in given] if len(set(map(repr, given))) > 1 and all(map(is_number, given)) else None


# ---- selection by a test score: only on request, and reported


def is_test(key: str) -> bool:
    """Return True for a score of a split that is evaluated once, after training: test, test_hard, ..."""
    return key.startswith("test")


def caution(objectives: Sequence[Objective]) -> str | None:
    """Return the warning of every output if the best was selected by test scores; otherwise None."""
    found = ", ".join(o.key for o in objectives if is_test(o.key))
    return f"CHOSEN ON TEST: the best was chosen by {found}, so its score is too good" if found else None


def check_choice(objectives: Sequence[Objective], allowed: bool) -> None:
    """Raise ConfigError if a test score would select the best and `allowed` (--choose-on-test) is False."""
    if not allowed and (found := [o for o in objectives if is_test(o.key)]):
        raise ConfigError(
            f"{found[0].key} is a test score, and the best would be chosen by it: choose by a validation score "
            f"(--score val/...:{found[0].mode}; --rows KEY --metrics {found[0].key} shows it), or add {FLAG}"
        )
