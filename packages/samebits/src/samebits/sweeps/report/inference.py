"""Statistics of scores over seeds or folds: intervals, effect sizes, and rows that differ from the best row. Needs only
NumPy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, stdev, variance
from typing import Any

import numpy as np

from samebits.sweeps.report.maxt import LEAST, LEVEL, Studentized, Table, studentize, t_of

POWER = 0.8
BEST_FIRST = np.zeros(1, int)
MOST_NEEDED = 100_000

Scores = Mapping[Any, float]  # {seed or fold: score}


@dataclass(frozen=True)
class Difference:
    """A row compared with the best one. Fields are None if there are too few seeds.

    difference: mean of the row minus mean of the best, over pairs if paired. low, high: 95 % interval. It accounts for
    the selection of the best; 95 % of all rows' intervals contain the true difference, but fewer than 95 % of tables
    have it in all of their intervals. p: probability that any row is this far from the best if no row differs. n:
    number of pairs, or the smaller number of seeds. effect: difference in standard deviations, of the pairs'
    differences (d_z, Cohen 1988) or of the runs (g, Hedges 1981); None for fewer than two seeds or equal scores.
    needed: seeds per row with which a difference of this size is found in 80 % of such tables."""

    difference: float
    low: float | None
    high: float | None
    p: float | None
    paired: bool
    n: int
    effect: float | None
    needed: int | None

    @property
    def effect_name(self) -> str:
        """Return the symbol of the effect size: d_z or g."""
        return "d_z" if self.paired else "g"

    @property
    def verdict(self) -> str:
        """Return the result of the comparison as text."""
        if self.p is None:
            return "too few seeds"
        return "differs" if self.p < LEVEL else "not told from seeds"


def standard_error(scores: Sequence[float], test_to_train: float = 0.0) -> float:
    """Return the standard error of the mean of at least two scores.

    test_to_train: the ratio of test to training rows if the scores are those of folds. Their training sets overlap, so
    the scores are correlated, and the variance of their mean is estimated by s^2 (1 / n + test_to_train) (Nadeau and
    Bengio 2003)."""
    return stdev(scores) * math.sqrt(1 / len(scores) + test_to_train)


def mean_interval(scores: Sequence[float], test_to_train: float) -> tuple[float, float] | None:
    """Return Student's t interval of the mean; None for fewer than LEAST scores. test_to_train: see standard_error."""
    if len(scores) < LEAST:
        return None
    half = t_quantile(1 - LEVEL, len(scores) - 1) * standard_error(scores, test_to_train)
    return fmean(scores) - half, fmean(scores) + half


def against_best(
    rows: Sequence[Scores],
    mode: str,
    best: int | None = None,
    candidates: Sequence[int] | None = None,
    test_to_train: float = 0.0,
) -> list[Difference | None]:
    """Compare each row with the best one. Return None for the best itself and for rows without a score.

    Rows that share LEAST seeds are compared by pairs, others by Welch's t. mode: min or max. candidates: rows that
    could have been the best (default: rows with the most scores). best: the best row (default: the candidate with the
    best mean). test_to_train: see standard_error; if it is not 0, `needed` is None. Raise ValueError for another mode,
    or a best row that is not a candidate or has no score."""
    if mode not in ("min", "max"):
        raise ValueError(f"mode={mode!r}: must be min or max")
    sign = 1.0 if mode == "min" else -1.0
    means = {i: sign * fmean(row.values()) for i, row in enumerate(rows) if row}
    if candidates is None:
        candidates = [i for i in means if len(rows[i]) == max(map(len, rows))]
    if best is None:
        best = min((i for i in candidates if i in means), key=means.__getitem__, default=None)
        if best is None:
            return [None] * len(rows)
    if best not in candidates or best not in means:
        raise ValueError(f"best={best}: must be a candidate with a score")
    order = [best, *(i for i in sorted(means, key=means.__getitem__) if i != best and len(rows[i]) >= LEAST)]
    known: dict[int, Difference] = {}
    if len(rows[best]) >= LEAST and len(order) > 1:
        tested = _tested([rows[i] for i in order], np.isin(order, candidates), sign, test_to_train)
        known = dict(zip(order[1:], tested))
    others = {i: known.get(i) or _too_few(rows[best], rows[i]) for i in means if i != best}
    return [others.get(i) for i in range(len(rows))]


def effect(best: Scores, row: Scores) -> float | None:
    """Return the difference in standard deviations, d_z of pairs or Hedges' g; None for too few or equal scores."""
    pairs = [row[seed] - best[seed] for seed in best if seed in row]
    if len(pairs) >= LEAST:
        spread = stdev(pairs)
        return fmean(pairs) / spread if spread else None
    one, two = list(best.values()), list(row.values())
    df = len(one) + len(two) - 2
    if min(len(one), len(two)) < 2:
        return None
    pooled = math.sqrt(((len(one) - 1) * variance(one) + (len(two) - 1) * variance(two)) / df)
    return (fmean(two) - fmean(one)) / pooled * (1 - 3 / (4 * df - 1)) if pooled else None


def _too_few(best: Scores, row: Scores) -> Difference:
    difference, n = fmean(row.values()) - fmean(best.values()), min(len(best), len(row))
    return Difference(difference, None, None, None, False, n, effect(best, row), None)


def _tested(rows: Sequence[Scores], candidates: np.ndarray, sign: float, test_to_train: float) -> list[Difference]:
    """Compare all rows with the first one, which is the best."""
    x, table = _matrix(rows, candidates)
    p, left = _step_down(sign * x, table, test_to_train)
    found = _studentized(sign * x, table, test_to_train)
    could_be_best = table.candidates & np.isin(np.arange(len(rows)), left)
    error, df = np.sqrt(found.variance / found.n)[0], found.df[0]
    if len(rows) == 2 and table.paired.all():
        half = error * t_quantile(1 - LEVEL, int(df[1]))
    else:
        half = error * t_of(replace(table, candidates=could_be_best).null().typical, df)
    critical = table.null().critical
    differences = []
    for i, row in enumerate(rows[1:], 1):
        difference, paired = sign * float(found.difference[0, i]), bool(table.paired[0, i])
        n = int(table.together[0, i]) if paired else min(len(rows[0]), len(row))
        low, high = difference - float(half[i]), difference + float(half[i])
        df_per_pair = float(df[i]) / (n - 1)
        # more folds cannot reduce the part of the variance that they share
        needed = None if test_to_train else _needed(difference, float(found.variance[0, i]), df_per_pair, critical)
        differences.append(Difference(difference, low, high, float(p[i]), paired, n, effect(rows[0], row), needed))
    return differences


def _studentized(x: np.ndarray, table: Table, test_to_train: float) -> Studentized:
    """Compare each row with the first one. x: (k, S).

    The scores of folds have a common random part, which changes the means and not the variances within a row. With the
    corrected n the statistics are distributed as those of independent scores, so the simulated tables remain valid.
    """
    found = studentize(x[None], table, BEST_FIRST)
    return replace(found, n=1 / (1 / found.n + test_to_train))


def _step_down(x: np.ndarray, table: Table, test_to_train: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (p of each row, rows that do not differ significantly from the first). Rows that differ are removed before
    the next round, which then corrects for fewer rows (Romano and Wolf 2005)."""
    p, left = np.ones(len(x)), np.arange(len(x))
    while len(left) > 1:
        part = table.part(left)
        found = _studentized(x[left], part, test_to_train)
        if len(left) == 2 and part.paired.all():  # the t test needs no simulation
            t = float(t_of(found.statistic[0, 1], found.df[0, 1]))
            p[left[1]] = t_tail(t, int(found.df[0, 1]))
        else:
            p[left] = part.null().p(found.statistic[0])
        differs = (p[left] < LEVEL) & (left > 0)
        left = left[~differs]
        if not differs.any():
            break
    return p, left


def _matrix(rows: Sequence[Scores], candidates: np.ndarray) -> tuple[np.ndarray, Table]:
    """Return (scores (k, S), the table of existing scores). Seeds of several rows come first, one column each; other
    seeds share columns."""
    counted = Counter(seed for row in rows for seed in row)
    place = {seed: column for column, seed in enumerate(seed for seed, times in counted.items() if times > 1)}
    own = [[score for seed, score in row.items() if seed not in place] for row in rows]
    x = np.full((len(rows), len(place) + max(map(len, own))), np.nan)
    for i, row in enumerate(rows):
        for seed, score in row.items():
            if seed in place:
                x[i, place[seed]] = score
        x[i, len(place) : len(place) + len(own[i])] = own[i]
    mask = np.isfinite(x)
    return np.where(mask, x, 0.0), Table(mask, len(place), candidates)


def _needed(difference: float, variance: float, df_per_seed: float, critical: float) -> int | None:
    """Return the number of seeds with which t exceeds the critical value in POWER of tables; None if the difference is
    0 or more than MOST_NEEDED seeds are needed."""
    found = NormalDist().inv_cdf(POWER)
    n = LEAST
    while n < MOST_NEEDED:
        df = np.array((n - 1) * df_per_seed)
        wanted = (float(t_of(critical, df)) + float(t_of(found, df))) ** 2 * variance
        if n * difference**2 >= wanted:
            return n
        n = max(n + 1, min(MOST_NEEDED, int(n * 1.02)))
    return None


@lru_cache(4096)
def t_quantile(level: float, df: int) -> float:
    """Return t with P(|T| <= t) = level."""
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > 1 - level else (low, middle)
    return high


def t_tail(t: float, df: int) -> float:
    """Return P(|T| > t). With T = sqrt(df) tan(a), the density of a is proportional to cos(a)^(df - 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(64)

    def integral(start: float) -> float:
        half = (math.pi / 2 - start) / 2
        return half * float(weights @ np.cos(start + half * (nodes + 1)) ** (df - 1))

    return integral(math.atan(t / math.sqrt(df))) / integral(0.0)
