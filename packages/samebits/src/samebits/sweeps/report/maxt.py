"""The max-T test: the largest studentized difference to the best row, and its distribution if no row differs.

The best row is selected by the same scores that are tested, so the largest difference to it is biased. Therefore it is
compared with the largest difference in simulated tables in which no row differs and the best is selected the same way
(max-T, Westfall and Young 1993, by Monte Carlo, Barnard 1963). Tables are simulated, not permuted, because three seeds
have too few permutations.

A variance estimated from few seeds is inaccurate, so the rows' variances are shrunk towards their geometric mean. The
less they differ beyond chance, the more they are shrunk (Cui et al. 2005); at least KEPT of the log distance remains.

Arrays: D tables, k rows, S columns. Lower is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

LEVEL = 0.05
LEAST = 3  # smallest number of seeds for an interval or a p value
KEPT = 1 / 3  # smallest fraction of a row's own log variance that is kept
# number of simulated tables; fewer if they would have more rows in total than DRAWN_ROWS
DRAWS, DRAWN_ROWS = 50_000, 1_000_000
CHUNK = 500_000  # scores simulated at once, to limit memory


@dataclass(frozen=True)
class Table:
    """The existing scores of a table. mask (k, S): the first `shared` columns are seeds that several rows have; the
    other columns are independent. candidates (k,): rows that could be the best."""

    mask: np.ndarray
    shared: int
    candidates: np.ndarray

    @cached_property
    def together(self) -> np.ndarray:
        """Return (k, k): the number of seeds that two rows share."""
        common = self.mask[:, : self.shared].astype(int)
        return common @ common.T

    @cached_property
    def paired(self) -> np.ndarray:
        """Return (k, k): True if two rows are compared by pairs of equal seeds."""
        return self.together >= LEAST

    def part(self, rows: np.ndarray) -> Table:
        """Return the table of some rows."""
        return Table(self.mask[rows], self.shared, self.candidates[rows])

    def null(self) -> Null:
        """Return the distribution for tables without a difference."""
        return _null(self.mask.tobytes(), self.mask.shape, self.shared, self.candidates.tobytes())


@dataclass(frozen=True)
class Studentized:
    """Each row compared with the best row of its table; all arrays (D, k). variance: of the difference for one seed,
    shrunk. df: its degrees of freedom. n: number of pairs or, unpaired, the harmonic mean of both n. statistic: |t| as
    a normal quantile."""

    best: np.ndarray  # (D,)
    difference: np.ndarray
    variance: np.ndarray
    df: np.ndarray
    n: np.ndarray

    @cached_property
    def statistic(self) -> np.ndarray:
        """Return |t| as a normal quantile, (D, k)."""
        error = np.sqrt(self.variance / self.n)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.difference == 0, 0.0, np.abs(self.difference) / error)
        return z_of(t, self.df)

    @cached_property
    def others(self) -> np.ndarray:
        """Return (D, k): False at the best row."""
        return np.arange(self.difference.shape[1]) != self.best[:, None]

    @property
    def largest(self) -> np.ndarray:
        """Return (D,): the largest statistic of each table."""
        return np.where(self.others, self.statistic, 0.0).max(1)


@dataclass(frozen=True)
class Null:
    """The distribution for tables without a difference. largest: the largest statistic of each table, sorted. typical:
    the 95th percentile of all rows' statistics."""

    largest: np.ndarray
    typical: float

    def p(self, statistic: np.ndarray) -> np.ndarray:
        """Return p values. The observed table counts as a simulated one (Phipson and Smyth 2010), so p is never 0."""
        as_large = len(self.largest) - np.searchsorted(self.largest, statistic * (1 - 1e-9))
        return (as_large + 1) / (len(self.largest) + 1)

    @property
    def critical(self) -> float:
        """Return the critical value of the largest statistic."""
        return float(np.quantile(self.largest, 1 - LEVEL))


@lru_cache(256)
def _null(mask: bytes, shape: tuple[int, int], shared: int, candidates: bytes) -> Null:
    table = Table(np.frombuffer(mask, bool).reshape(shape), shared, np.frombuffer(candidates, bool))
    random = np.random.default_rng(0)
    draws, rows = max(1_000, min(DRAWS, DRAWN_ROWS // shape[0])), shape[0]
    largest, every = [], []
    for begin in range(0, draws, step := max(1, CHUNK // (rows * shape[1]))):
        count = min(step, draws - begin)
        found = studentize(random.standard_normal((count, *shape)), table)
        largest.append(found.largest)
        every.append(found.statistic[found.others])
    return Null(np.sort(np.concatenate(largest)), float(np.quantile(np.concatenate(every), 1 - LEVEL)))


def studentize(x: np.ndarray, table: Table, best: np.ndarray | None = None) -> Studentized:
    """Compare each row with the best one. x: (D, k, S), with any value where the mask is False. best: (D,), by default
    the candidate with the smallest mean."""
    x = x if table.mask.all() else np.where(table.mask, x, 0.0)
    size = table.mask.sum(1)
    mean = x.sum(2) / size
    if best is None:
        best = np.where(table.candidates, mean, np.inf).argmin(1)
    kinds = table.paired[best]
    if kinds.all():
        found = _pairs(x, table, best)
    else:
        found = _welch(x, mean, size, table, best)
        if table.paired.sum() > len(size):  # some different rows are paired
            found = tuple(np.where(kinds, one, two) for one, two in zip(_pairs(x, table, best), found))
    difference, variance, df, n = found
    others = np.arange(len(size)) != best[:, None]
    return Studentized(best, difference, *shrunk(variance, df, others), n)


def _pairs(x: np.ndarray, table: Table, best: np.ndarray) -> tuple[np.ndarray, ...]:
    common = table.mask[:, : table.shared]
    both = common & common[best][:, None]
    n = table.together[best]
    at_least_one = np.maximum(n, 1)  # rows that share too few seeds are not compared by pairs
    pairs = x[:, :, : table.shared]
    pairs = np.where(both, pairs - pairs[np.arange(len(x)), best][:, None], 0.0)
    mean = pairs.sum(2) / at_least_one
    squares = np.where(both, pairs - mean[:, :, None], 0.0)
    return mean, (squares**2).sum(2) / np.maximum(n - 1, 1), np.maximum(n - 1.0, 1.0), at_least_one.astype(float)


def _welch(x: np.ndarray, mean: np.ndarray, size: np.ndarray, table: Table, best: np.ndarray) -> tuple[np.ndarray, ...]:
    rows = np.arange(len(x))
    spread = np.where(table.mask, x - mean[:, :, None], 0.0)
    error = (spread**2).sum(2) / (size - 1) / size  # squared standard error of a mean
    own = error[rows, best][:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (error + own) ** 2 / (error**2 / (size - 1) + own**2 / (size[best] - 1)[:, None])
    df = np.where(np.isfinite(df), df, 1.0)
    n = 2 / (1 / size + 1 / size[best][:, None])
    return mean - mean[rows, best][:, None], (error + own) * n, df, n


def shrunk(variance: np.ndarray, df: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (variance, df) of rows, (D, k), with log variances shrunk towards the mean over the rows in `among`.

    among: the same number of rows in each table. The spread expected by chance is subtracted (Cui et al. 2005).
    """
    count = int(among[0].sum())
    if count < 2:
        return variance, df
    logs = np.log(np.maximum(variance, 1e-300))
    middle = np.where(among, logs, 0.0).sum(1, keepdims=True) / count
    spread = np.where(among, (logs - middle) ** 2, 0.0).sum(1, keepdims=True) / (count - 1)
    with np.errstate(divide="ignore"):
        kept = np.maximum(1 - log_variance(df) / spread, KEPT)
    return np.exp(middle + kept * (logs - middle)), np.minimum(df / kept, df * count)


def log_variance(df: np.ndarray) -> np.ndarray:
    """Return the variance of the log of a variance estimate, trigamma(df / 2), accurate to 2 % for df >= 2 (Abramowitz
    and Stegun 6.4.12)."""
    half = df / 2
    return 1 / half + 1 / (2 * half**2) + 1 / (6 * half**3)


def z_of(t: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return |t| as the quantile of a normal distribution with nearly the same tail (Wallace 1959)."""
    return (8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(t**2 / df))


def t_of(z: float | np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return the inverse of z_of."""
    return np.sqrt(df * np.expm1((z * (8 * df + 3) / (8 * df + 1)) ** 2 / df))
