"""Is a difference between two configurations more than their seeds? Paired where both ran with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import numpy as np

from engine.config import is_seed
from engine.sweeps.report.analyse import Group, groups
from engine.sweeps.report.read import Objective, Study

RESAMPLES = 10_000
EXACT = 14  # up to so many pairs all sign flips are counted
LEVEL = 0.05
FACTOR = (1.959964 + 0.841621) ** 2  # normal quantiles of a two-sided 5 % test with a power of 80 %


@dataclass(frozen=True)
class Comparison:
    """A group against the best one.

    difference: mean score of `group` minus that of `best`; low, high: its 95 % bootstrap interval (Efron 1979), of the
    seeds' pairs or, unpaired, of both groups by themselves. p: two-sided, of sign flips of the pairs or of
    permutations of the seeds, corrected for all comparisons of the table (Holm 1979). needed: seeds of each group with
    which a difference of this size would be found in 80 % of such comparisons (normal approximation, uncorrected), and
    at least as many as the corrected test needs to find any.
    """

    group: Group
    best: Group
    difference: float
    low: float
    high: float
    p: float
    paired: bool
    n: int
    needed: int | None
    tests: int = 1  # rows of the table, for which p is corrected

    @property
    def verdict(self) -> str:
        if self.p < LEVEL:
            return "differs"
        return "not told from seeds" if can_tell(self.n, self.paired, self.tests) else "too few seeds to tell"


Compared = Mapping[str, Sequence[Comparison]]  # by an objective's key


def can_tell(n: int, paired: bool, tests: int) -> bool:
    """Whether n seeds can give a p below LEVEL at all, after the correction for so many tests."""
    return tests * 2 / (2**n if paired else math.comb(2 * n, n)) < LEVEL


def comparisons(study: Study) -> Compared:
    """Each group with at least two scores against the best one of them, for each objective where there are two."""
    found = {objective.key: _against_best(study, objective) for objective in study.objectives}
    return {key: rows for key, rows in found.items() if rows}


def _against_best(study: Study, objective: Objective) -> list[Comparison]:
    ranked = [group for group in groups(study, objective) if len(group.scores(objective)) > 1]
    found = [_compared(study, objective, ranked[0], other) for other in ranked[1:]]
    corrected = holm([each.p for each in found])
    least = {paired: next(n for n in count(2) if can_tell(n, paired, len(found))) for paired in (True, False)}
    return [
        replace(each, p=p, tests=len(found), needed=each.needed and max(each.needed, least[each.paired]))
        for each, p in zip(found, corrected)
    ]


def _compared(study: Study, objective: Objective, best: Group, other: Group) -> Comparison:
    a, b = (by_seed(study, group, objective) for group in (best, other))
    shared = [seed for seed in a if seed in b]
    paired = len(shared) > 1
    random = np.random.default_rng(0)
    if paired:
        pairs = np.array([b[seed] - a[seed] for seed in shared])
        means = pairs[random.integers(0, len(pairs), (RESAMPLES, len(pairs)))].mean(1)
        difference, p, n, variance = (
            float(pairs.mean()),
            sign_flips(pairs, random),
            len(pairs),
            float(pairs.var(ddof=1)),
        )
    else:
        one, two = np.array(best.scores(objective)), np.array(other.scores(objective))
        resampled = [x[random.integers(0, len(x), (RESAMPLES, len(x)))].mean(1) for x in (one, two)]
        means, difference = resampled[1] - resampled[0], float(two.mean() - one.mean())
        p, n, variance = (
            permutations(one, two, random),
            min(len(one), len(two)),
            float(one.var(ddof=1) + two.var(ddof=1)),
        )
    low, high = np.quantile(means, [0.025, 0.975])
    needed = max(2, math.ceil(FACTOR * variance / difference**2)) if difference else None
    return Comparison(other, best, difference, float(low), float(high), p, paired, n, needed)


def by_seed(study: Study, group: Group, objective: Objective) -> Mapping[Any, float]:
    """{values of the swept seeds: score}; empty where no seed was swept, or two jobs have the same."""
    keys = [key for key in study.swept if is_seed(key)]
    scored = [(job, score) for job in group.jobs if (score := job.score(objective)) is not None]
    found = {repr([study.value(job, key) for key in keys]): score for job, score in scored}
    return found if keys and len(found) == len(scored) else {}


def sign_flips(pairs: np.ndarray, random: np.random.Generator) -> float:
    """p of the mean of paired differences (n,), if each could as well have had the other sign (Fisher 1935)."""
    exact = len(pairs) <= EXACT
    signs = (
        np.array(list(product((-1.0, 1.0), repeat=len(pairs))))
        if exact
        else random.choice([-1.0, 1.0], (RESAMPLES, len(pairs)))
    )
    return _share(np.abs((signs * pairs).mean(1)), abs(pairs.mean()), exact)


def permutations(one: np.ndarray, two: np.ndarray, random: np.random.Generator) -> float:
    """p of the difference of two means, if each score could as well have come from the other group."""
    pool = np.concatenate([one, two])
    shuffled = random.permuted(np.tile(pool, (RESAMPLES, 1)), axis=1)
    found = shuffled[:, : len(one)].mean(1) - shuffled[:, len(one) :].mean(1)
    return _share(np.abs(found), abs(one.mean() - two.mean()), exact=False)


def _share(found: np.ndarray, observed: float, exact: bool) -> float:
    """Share of the values that are as large, to rounding; a sampled one counts the observed case (Phipson 2010)."""
    as_large = int((found >= observed * (1 - 1e-9)).sum())
    return as_large / len(found) if exact else (as_large + 1) / (len(found) + 1)


def holm(values: list[float]) -> list[float]:
    """p values of several tests, corrected so that any false finding has the level's chance (Holm 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, highest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, values[i] * (len(values) - place)))
        corrected[i] = highest
    return corrected
