"""Compare each configuration of a study with the best one: is the difference larger than between seeds or folds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samebits.saved import is_seed
from samebits.sweeps.report.analyse import Group, best_group, groups
from samebits.sweeps.report.inference import Difference, Scores, against_best
from samebits.sweeps.report.read import Objective, Study


@dataclass(frozen=True)
class Comparison(Difference):
    """A difference to the best configuration, with the group that was compared."""

    group: Group
    best: Group


Compared = Mapping[str, Sequence[Comparison]]  # {key of an objective: comparisons}


def comparisons(study: Study) -> Compared:
    """Return the comparisons for each objective with two groups that can be compared."""
    found = {objective.key: compared(study, objective) for objective in study.objectives}
    return {key: rows for key, rows in found.items() if rows}


def compared(study: Study, objective: Objective) -> list[Comparison]:
    """Compare each group that has at least two scores of the objective with the best one."""
    ranked = [group for group in groups(study, objective) if len(group.scores(objective)) > 1]
    if not ranked:
        return []
    first = best_group(study, objective)
    most = max(group.runs(objective) for group in ranked)  # in a sweep the best has the most runs
    could_be_best = [i for i, group in enumerate(ranked) if not study.is_sweep or group.runs(objective) == most]
    best = next((i for i, group in enumerate(ranked) if group is first), could_be_best[0])
    rows = [scores_by_seed(study, group, objective) for group in ranked]
    ratio = max(group.test_to_train for group in ranked)
    found = against_best(rows, objective.mode, best, could_be_best, ratio)
    return [Comparison(**vars(each), group=g, best=ranked[best]) for g, each in zip(ranked, found) if each]


def scores_by_seed(study: Study, group: Group, objective: Objective) -> Scores:
    """Return {values of the swept seeds: score}; with folds, {fold: mean over its seeds}. If no seed was swept, or two
    scores have the same seed, the keys belong only to this group and pair with no other group."""
    if group.folds:
        return group.scores_by_fold(objective)
    keys = [key for key in study.swept if is_seed(key)]
    counted = filter(group.counts, group.jobs)
    scored = [(job, score) for job in counted if (score := job.score(objective)) is not None]
    found: dict[object, float] = {}
    for job, score in scored:
        found.setdefault(repr([study.value(job, key) for key in keys]), score)
    scores = group.scores(objective)
    return found if keys and len(found) == len(scores) else {(group.label, i): s for i, s in enumerate(scores)}
