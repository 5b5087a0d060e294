"""Importance of each swept key: how much of the scores' differences it explains.

Optuna's PED-ANOVA (Watanabe et al. 2023) where Optuna is installed and there are enough scores for it; otherwise, and
for grids, epsilon squared (Kelley 1935) of a one-way analysis of variance of the scores' ranks: the share of variance
between the key's values, corrected for chance. Ranks make it robust against one diverged job. It sees each key alone,
no interactions.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.sweeps.report.analyse import config_keys, is_log, numbers
from engine.sweeps.report.read import Objective, Study

MIN_JOBS = 8  # with fewer, any share is chance
MIN_TRIALS = 20  # PED-ANOVA compares the best tenth with all; of fewer trials, a tenth is one
BINS = 5  # most bins for a key with more distinct numbers; at least 4 scores in each


@dataclass(frozen=True)
class Importance:
    shares: dict[str, float]  # key -> 0..1, the largest first
    method: str  # a sentence for the reader
    jobs: int


def importance(study: Study, objective: Objective) -> Importance | None:
    """None: fewer than MIN_JOBS scores, or fewer than two keys that vary. A key that some jobs lack counts among those
    that have it."""
    rows = [(job, score) for job in study.jobs if (score := job.score(objective)) is not None]
    keys = config_keys(study)
    params = [{key: study.value(job, key) for key in keys if not study.lacks(job, key)} for job, _ in rows]
    columns = {key: [one[key] for one in params if key in one] for key in keys}
    columns = {key: values for key, values in columns.items() if len(set(map(repr, values))) > 1}
    if len(rows) < MIN_JOBS or len(columns) < 2:
        return None
    scores = [score for _, score in rows]
    shares, method = None, ""
    if len(rows) >= MIN_TRIALS and any(len(set(numbers(c) or ())) > BINS for c in columns.values()):
        shares = _ped_anova(columns, params, scores, objective, study)
        method = "PED-ANOVA of Optuna: how differently a value is spread among the best tenth and among all"
    if shares is None:
        shares = {
            key: epsilon_squared(_bins(values), ranks([score for one, score in zip(params, scores) if key in one]))
            for key, values in columns.items()
        }
        method = (
            "share of the variance of the scores' ranks that is between the key's values, corrected for chance "
            "(epsilon squared of a one-way ANOVA)"
        )
    if some := [key for key, values in columns.items() if len(values) < len(rows)]:
        method += f"; {', '.join(some)}: of the jobs that have it"
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return Importance(ordered, method, len(rows))


def epsilon_squared(labels: Sequence[Any], scores: Sequence[float]) -> float:
    """(between - (k - 1) * within / (n - k)) / total, at least 0; 0 if no value occurs twice."""
    by_label: dict[Any, list[float]] = {}
    for name, score in zip(labels, scores, strict=True):
        by_label.setdefault(name, []).append(score)
    n, k, mean = len(scores), len(by_label), statistics.fmean(scores)
    total = sum((score - mean) ** 2 for score in scores)
    within = sum((score - statistics.fmean(group)) ** 2 for group in by_label.values() for score in group)
    if total == 0 or n <= k:
        return 0.0
    return max(0.0, (total - within - (k - 1) * within / (n - k)) / total)


def ranks(scores: Sequence[float]) -> list[float]:
    """1 for the smallest; equal scores share the mean of their ranks."""
    ordered = sorted(scores)
    first = {score: i for i, score in reversed(list(enumerate(ordered, 1)))}
    return [first[score] + (ordered.count(score) - 1) / 2 for score in scores]


def _bins(values: Sequence[Any]) -> list[Any]:
    """Labels for the groups: numbers with many distinct values in equally filled bins, else the values themselves."""
    known, bins = numbers(values), min(BINS, len(values) // 4)
    if known is None or len(set(known)) <= bins:
        return [repr(value) for value in values]
    ranked = sorted(known)
    edges = [ranked[len(ranked) * i // bins] for i in range(1, bins)]
    return [None if value is None else sum(value >= edge for edge in edges) for value in values]


def _ped_anova(
    columns: dict[str, list[Any]],
    params: list[dict[str, Any]],
    scores: list[float],
    objective: Objective,
    study: Study,
) -> dict[str, float] | None:
    """None without Optuna. The jobs become trials of an in-memory study, so this works for any kind of sweep."""
    try:
        import optuna
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds: dict[str, Any] = {}
    for key, values in columns.items():
        known = numbers(values)
        if known is None or len(known) < len(values):
            kinds[key] = optuna.distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
        else:
            log = is_log(known, key in study.log_keys)
            kinds[key] = optuna.distributions.FloatDistribution(min(known), max(known), log=log)
    memory = optuna.create_study(direction="minimize" if objective.mode == "min" else "maximize")
    for one, score in zip(params, scores, strict=True):
        mine = {key: kind for key, kind in kinds.items() if key in one}  # Optuna takes the others for inactive
        numeric = {key: isinstance(kind, optuna.distributions.FloatDistribution) for key, kind in mine.items()}
        given = {key: float(one[key]) if numeric[key] else repr(one[key]) for key in mine}
        memory.add_trial(optuna.trial.create_trial(params=given, distributions=mine, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(memory, evaluator=evaluator)
    return {key: float(found.get(key, 0.0)) for key in columns}
