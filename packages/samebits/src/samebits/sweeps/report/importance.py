"""Importance of each swept key by Optuna's PED-ANOVA (Watanabe et al. 2023): how much the distribution of its values
among the best tenth differs from that among all jobs. Keys are evaluated separately, without interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from samebits.sweeps.report.analyse import config_keys, numbers
from samebits.sweeps.report.axes import axes, is_log
from samebits.sweeps.report.read import Study

MIN_JOBS = 20  # a tenth of fewer jobs is one job
METHOD = "PED-ANOVA of Optuna: how differently a value is spread among the best tenth and among all"


@dataclass(frozen=True)
class Importance:
    """Importance of the swept keys."""

    shares: dict[str, float]  # {key: 0 to 1}, largest first
    note: str  # a sentence for the reader


def importance(study: Study) -> Importance | None:
    """Return the importance for the first objective; None if Optuna is not installed, there are fewer than MIN_JOBS
    scores, or fewer than two keys vary. A key that some jobs do not have is evaluated among the jobs that have it."""
    rows = [(job, score) for job in study.jobs if (score := job.score(study.objective)) is not None]
    keys = config_keys(study)
    params = [{key: study.value(job, key) for key in keys if not study.lacks(job, key)} for job, _ in rows]
    for pair in {one.pair for one in axes(study) if one.pair}:  # keys whose values form pairs are one key
        params = [
            {key: value for key, value in one.items() if key not in pair}
            | ({", ".join(pair): tuple(one.get(key, "-") for key in pair)} if not one.keys().isdisjoint(pair) else {})
            for one in params
        ]
    names = dict.fromkeys(key for one in params for key in one)
    columns = {key: [one[key] for one in params if key in one] for key in names}
    columns = {key: values for key, values in columns.items() if len(set(map(repr, values))) > 1}
    if len(rows) < MIN_JOBS or len(columns) < 2:
        return None
    try:
        import optuna
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {key: _distribution(values, key in study.log_keys) for key, values in columns.items()}
    numeric = {key for key, kind in kinds.items() if isinstance(kind, optuna.distributions.FloatDistribution)}
    memory = optuna.create_study(direction="minimize" if study.objective.mode == "min" else "maximize")
    for one, (_, score) in zip(params, rows, strict=True):
        mine = {key: kind for key, kind in kinds.items() if key in one}  # Optuna treats the other keys as inactive
        given = {key: float(one[key]) if key in numeric else repr(one[key]) for key in mine}
        memory.add_trial(optuna.trial.create_trial(params=given, distributions=mine, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(memory, evaluator=evaluator)
    shares = {key: float(found.get(key, 0.0)) for key in columns}
    some = [key for key, values in columns.items() if len(values) < len(rows)]
    note = f"{METHOD}; {len(rows)} jobs" + (f"; {', '.join(some)}: of the jobs that have it" if some else "")
    return Importance(dict(sorted(shares.items(), key=lambda item: -item[1])), note)


def _distribution(values: Sequence[Any], log: bool) -> Any:
    import optuna

    known = numbers(values)
    if known is None or len(known) < len(values):
        return optuna.distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
    return optuna.distributions.FloatDistribution(min(known), max(known), log=is_log(known, log))
