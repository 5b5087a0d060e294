"""Analysis for the report: jobs grouped over seeds, the best group, what sets jobs apart; values as text."""

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
from samebits.runs import NOT_COMPUTED
from samebits.saved import is_seed
from samebits.sweeps.report.read import Job, Objective, Study

FLAG = "--choose-on-test"
FEW_KEYS = 3  # most keys that are added to an equal label


@dataclass(frozen=True)
class Group:
    """Jobs that differ only in the seed."""

    values: dict[str, Any]  # swept key -> value, seeds left out
    jobs: tuple[Job, ...]
    label: str  # lr=0.001 width=64
    unswept: Mapping[str, Any] = field(default_factory=dict)  # those of `values` that come from no override

    def scores(self, objective: Objective) -> list[float]:
        """One for each seed: a search may draw the same values twice, and a job repeated with its seed says nothing."""
        found: dict[str, float] = {}
        for seed, job in self._seeded:
            if (score := job.score(objective)) is not None:
                found.setdefault(seed, score)
        return list(found.values())

    @cached_property
    def _seeded(self) -> list[tuple[str, Job]]:
        """(what names its seeds, job)."""
        seeds = [sorted((key, value) for key, value in job.config.items() if is_seed(key)) for job in self.jobs]
        return [(repr(found) if found else job.key, job) for found, job in zip(seeds, self.jobs)]

    def mean(self, objective: Objective) -> float | None:
        scores = self.scores(objective)
        return statistics.fmean(scores) if scores else None

    def std(self, objective: Objective) -> float | None:
        """Sample standard deviation (n - 1); None below two scores."""
        scores = self.scores(objective)
        return statistics.stdev(scores) if len(scores) > 1 else None

    def failures(self, objective: Objective) -> list[Job]:
        """Jobs that ended and have no score: failed, killed, or finished with one that is not finite."""
        return [job for job in self.jobs if is_failure(job, objective)]


def is_failure(job: Job, objective: Objective) -> bool:
    return job.died or (job.status == "finished" and job.score(objective) is None)


def config_keys(study: Study) -> tuple[str, ...]:
    """The swept keys except seeds: they tell configurations apart."""
    return tuple(key for key in study.swept if not is_seed(key))


def groups(study: Study, objective: Objective | None = None) -> list[Group]:
    """Groups by their mean of the objective (None: the first), best first, those without a score last."""
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
        found.setdefault(repr([_one_spelling(study.value(job, key)) for key in keys]), []).append(job)
    common = set.intersection(*(set(job.overrides) for job in study.jobs))
    made = []
    for jobs in found.values():
        values = {key: study.value(jobs[0], key) for key in keys if not study.lacks(jobs[0], key)}
        name = _sweep_label(values, jobs) if study.is_sweep else _run_label(study, jobs[0], common)
        silent = {key: jobs[0].config[key] for key in study.unswept if key in jobs[0].config}
        made.append(Group(values, tuple(jobs), name, silent))
    doubled = Counter(group.label for group in made)
    made = [g if doubled[g.label] == 1 else replace(g, label=_told_apart(g, made)) for g in made]
    return tuple(g if g.label else replace(g, label=g.jobs[0].key) for g in made)


def best_group(study: Study, objective: Objective | None = None) -> Group | None:
    """The group with the best mean of the objective (None: the first). In a sweep only among the groups with the most
    scored seeds, so that one lucky seed does not win."""
    objective = objective or study.objective
    ranked = groups(study, objective)
    if not study.is_sweep:
        return next((group for group in ranked if group.scores(objective)), None)
    return best_of_most_seeds(ranked, objective)


def best_of_most_seeds(ranked: Sequence[Group], objective: Objective) -> Group | None:
    """The first of `ranked` among those with the most scored seeds; None: none has a score."""
    most = max((len(group.scores(objective)) for group in ranked), default=0)
    return next((group for group in ranked if most and len(group.scores(objective)) == most), None)


def pareto(study: Study) -> list[Group]:
    """The Pareto front: groups with a mean in each objective that no other group dominates."""
    scored = []  # (group, its means, signed so that less is better)
    for group in groups(study):
        means = [group.mean(o) for o in study.objectives]
        losses = [o.sign * m for o, m in zip(study.objectives, means) if m is not None]
        if len(losses) == len(means):
            scored.append((group, losses))

    def dominates(a: list[float], b: list[float]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b))

    return [group for group, losses in scored if not any(dominates(other, losses) for _, other in scored)]


def difference(study: Study) -> str | None:
    """One line: values of keys in which jobs differ although they were not swept, and their jobs; None: no such key."""
    parts = []
    for key in study.unswept:
        jobs: dict[str, list[int]] = {}
        for job in study.jobs:
            if job.config:
                jobs.setdefault(show(study.value(job, key)), []).append(job.number)
        counted = [
            f"{text} in {len(n)} jobs ({', '.join(map(str, n[:5]))}{', ...' * (len(n) > 5)})"
            for text, n in jobs.items()
        ]
        parts.append(f"{key} is {', '.join(counted)}")
    return "; ".join(parts) or None


def other_code(study: Study) -> str | None:
    """One line: which jobs ran with which code; None: all with the same."""
    found = [(job.number, code) for job in study.jobs for code in job.code]
    return by_code(found) if len({code for _, code in found}) > 1 else None


def counts(study: Study) -> dict[str, int]:
    """{status: number of jobs}, finished first."""
    order = ("finished", "running", "queued", "failed", "killed", "pruned", "preempted", "interrupted")
    found = [job.status for job in study.jobs]
    return {status: found.count(status) for status in dict.fromkeys([*order, *found]) if status in found}


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """{key: its shortest unique ending}: optim.lr -> lr, if no other key ends in lr."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        names[key] = next(end for end in ends if end == key or not any(o != key and _ends(o, end) for o in keys))
    return names


def _ends(key: str, end: str) -> bool:
    return key == end or key.endswith(f".{end}")


def _sweep_label(values: dict[str, Any], jobs: Sequence[Job]) -> str:
    names = short_names(tuple(values))
    words = [f"{names[key]}={show(value)}" for key, value in values.items()]
    return " ".join(words) or ("all seeds" if len(jobs) > 1 else jobs[0].key)


def _run_label(study: Study, job: Job, common: set[str]) -> str:
    """What was given to this run and not to all (without seed), in one spelling; "": nothing was."""
    keys = {o.partition("=")[0].lstrip("+"): o for o in job.overrides if o not in common and o[:5] != "hydra"}
    told = {
        key: f"{key}={show(study.value(job, key))}" if "=" in override else override
        for key, override in keys.items()
        if not is_seed(key) and (key in study.swept if key in job.config else key.split(".")[0] not in NOT_COMPUTED)
    }
    return " ".join(told.values())


def _one_spelling(value: Any) -> Any:
    """1.0 is 1, as it is for `==`."""
    if isinstance(value, list):
        return [_one_spelling(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _told_apart(group: Group, all_groups: Sequence[Group]) -> str:
    """The label of one of several groups with an equal one: with the values in which they differ."""
    alike = [other.values for other in all_groups if other.label == group.label]
    absent = object()
    keys = [key for key in group.values if any(one.get(key, absent) != group.values[key] for one in alike)]
    shown = [f"{key}={v if isinstance(v := group.values[key], float) else show(v)}" for key in keys[:FEW_KEYS]]
    if len({repr([one.get(key) for key in keys[:FEW_KEYS]]) for one in alike}) < len(alike) or not shown:
        shown.append(group.jobs[0].key)
    return f"{group.label} ({', '.join(shown)})" if group.label else " ".join(shown)


def value_text(study: Study, job: Job, key: str) -> str:
    """A job's value of a swept key as text; "-" where it has no such key."""
    return "-" if study.lacks(job, key) else show(study.value(job, key))


def show(value: Any) -> str:
    """A value as text: floats with 4 digits, all else as in yaml."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(show, value))}]"
    return written(value) if value is None or isinstance(value, bool) else str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def numbers(values: Iterable[Any]) -> list[float] | None:
    """The values as floats, None left out; None unless all are numbers and at least two differ."""
    given = [value for value in values if value is not None]
    return [float(v) for v in given] if len(set(map(repr, given))) > 1 and all(map(is_number, given)) else None


# ---- by which score is chosen: a test score only where that was asked for, and said


def is_test(key: str) -> bool:
    """Of a split that is scored once, at the end: test, test_hard, ..."""
    return key.startswith("test")


def caution(objectives: Sequence[Objective]) -> str | None:
    """What each output says where the best was chosen by test scores; None: it was not."""
    found = ", ".join(o.key for o in objectives if is_test(o.key))
    return f"CHOSEN ON TEST: the best was chosen by {found}, so its score is too good" if found else None


def check_choice(objectives: Sequence[Objective], allowed: bool) -> None:
    """ConfigError where a test score would choose and `allowed` (--choose-on-test) was not given."""
    if not allowed and (found := [o for o in objectives if is_test(o.key)]):
        raise ConfigError(
            f"{found[0].key} is a test score, and the best would be chosen by it: choose by a validation score "
            f"(--score val/...:{found[0].mode}; --rows KEY --metrics {found[0].key} shows it), or add {FLAG}"
        )
