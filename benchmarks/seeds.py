"""Do the report's intervals and "differs" hold what they claim? Simulated tables through the report's own functions.

    ./run python benchmarks/seeds.py [--tables 20000] [--quick] [--rows 2 40] [--seeds 3]

coverage   share of the rows' 95 % intervals that hold the true difference to the chosen best
false      share of tables with a "differs" where there is none
power      share of the true differences found, beside tests of all pairs, which hold the level under the choice of
           the best: Tukey's HSD; t tests (paired or Welch's) with Holm's correction
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import stats

from samebits.sweeps.report.inference import against_best
from samebits.sweeps.report.maxt import LEVEL, Table, studentize

ROWS, SEEDS = (2, 3, 5, 10, 20, 40), (3, 4, 5, 8, 12)
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape)


def lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.exp(random.standard_normal(shape)) - np.exp(0.5)


def heavy(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_t(3, shape)


def unequal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape) * np.geomspace(1, 5, shape[1])[:, None]


def one_noisy(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape) * np.where(np.arange(shape[1]) == 0, 5, 1)[:, None]


def equal_rows(rows: int, seeds: int, paired: bool, tables: int, draw: Draw) -> tuple[float, float]:
    """(coverage, false) of tables whose rows do not differ: the first step decides on a false finding."""
    table = Table(np.ones((rows, seeds), bool), seeds if paired else 0, np.ones(rows, bool))
    null, random = table.null(), np.random.default_rng([rows, seeds, paired])
    inside = false = 0
    for begin in range(0, tables, step := max(1, 400_000 // (rows * seeds))):
        found = studentize(draw(random, (min(step, tables - begin), rows, seeds)), table)
        false += int((found.largest > null.critical).sum())
        inside += int((found.statistic <= null.typical)[found.others].sum())
    return inside / (tables * (rows - 1)), false / tables


def ours(scores: np.ndarray, paired: bool) -> np.ndarray:
    """Which rows differ from the best (k,)."""
    rows = [{(s if paired else (i, s)): float(x) for s, x in enumerate(row)} for i, row in enumerate(scores)]
    return np.array([bool(each and each.verdict == "differs") for each in against_best(rows, "min")])


def tukey(scores: np.ndarray, paired: bool) -> np.ndarray:
    """Tukey's HSD with scipy's studentized range, as scipy.stats.tukey_hsd and statsmodels' pairwise_tukeyhsd do it
    (which take seconds for a table); of pairs, which they leave to the user, by the residuals of rows and seeds."""
    k, n = scores.shape
    means, df = scores.mean(1), (k - 1) * (n - 1) if paired else k * (n - 1)
    residuals = scores - scores.mean(0) * paired
    residuals -= residuals.mean(1, keepdims=True)
    far = (means - means.min()) / np.sqrt((residuals**2).sum() / df / n)
    return far > studentized_range(k, df)


@lru_cache
def studentized_range(k: int, df: int) -> float:
    return float(stats.studentized_range.ppf(1 - LEVEL, k, df))


def holm(scores: np.ndarray, paired: bool) -> np.ndarray:
    """All pairs by scipy's t test, corrected for their number."""
    k, best = len(scores), scores.mean(1).argmin()
    one, two = map(list, zip(*itertools.combinations(range(k), 2)))
    test = stats.ttest_rel if paired else lambda a, b, axis: stats.ttest_ind(a, b, axis=axis, equal_var=False)
    values = test(scores[one], scores[two], axis=1).pvalue
    order = values.argsort()
    held = values[order] <= LEVEL / np.arange(len(order), 0, -1)  # up to the first that is not
    corrected = np.empty(len(order), bool)
    corrected[order] = np.logical_and.accumulate(held)
    found = np.zeros(k, bool)
    for i, j, differs in zip(one, two, corrected):
        if best in (i, j):
            found[j if i == best else i] = differs
    return found


def power(truth: np.ndarray, spread: np.ndarray, seeds: int, paired: bool, tables: int) -> list[str]:
    """Of each test "found / false": the share of true differences found, the share of tables with a false one."""
    random, methods = np.random.default_rng(1), (ours, tukey, holm)
    found, false, there = np.zeros(3), np.zeros(3), 0
    for _ in range(tables):
        scores = truth[:, None] + spread[:, None] * random.standard_normal((len(truth), seeds))
        gap = truth - truth[scores.mean(1).argmin()]
        there += int((gap != 0).sum())
        for i, method in enumerate(methods):
            differs = method(scores, paired)
            found[i] += differs[gap != 0].sum()
            false[i] += differs[gap == 0].any()
    return [f"{one / there:.2f} / {two / tables:.3f}" for one, two in zip(found, false)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the tables")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of the tables with equal rows")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds of each row")
    args = parser.parse_args()
    tables = args.tables // 20 if args.quick else args.tables
    began = time.process_time()
    print(f"equal rows, {tables} tables a cell: coverage / false\n")
    for name, draw in (("normal", normal), ("t with 3 df", heavy), ("lognormal", lognormal),
                       ("sd from 1 to 5", unequal), ("one row of sd 5", one_noisy)):  # fmt: skip
        for paired in (True, False):
            columns = " | ".join(f"{k} rows" for k in args.rows)
            print(f"| {name}, {'paired' if paired else 'not paired'} | {columns} |")
            print("|---" * (len(args.rows) + 1) + "|")
            for seeds in args.seeds or SEEDS:
                cells = [equal_rows(k, seeds, paired, tables, draw) for k in args.rows]
                print(f"| {seeds} seeds | " + " | ".join(f"{c:.3f} / {f:.3f}" for c, f in cells) + " |", flush=True)
            print()
    few = -(-tables // 20)
    print(f"power / false, {few} tables a cell (differences in standard deviations of a run)\n")
    print("| | seeds | ours | Tukey's HSD | t tests, Holm |\n|---|---|---|---|---|")
    ones = np.ones(10)
    cases = {
        "10 rows, 0 to 9 apart": (np.arange(10.0), ones),
        "10 rows, the best by 3": (np.array([0.0] + [3.0] * 9), ones),
        "10 rows, 5 equal best, 5 by 3": (np.repeat([0.0, 3.0], 5), ones),
        "6 rows 0, 0, 3, 3, 30, 60, sd 1, 1, 1, 1, 10, 20": (
            np.array([0, 0, 3, 3, 30, 60.0]), np.array([1, 1, 1, 1, 10, 20.0])
        ),
    }  # fmt: skip
    for name, (truth, spread) in cases.items():
        for seeds, paired in itertools.product(args.seeds or (3, 5, 10), (True, False)):
            cells = " | ".join(power(truth, spread, seeds, paired, few))
            print(f"| {name} | {seeds}{' paired' * paired} | {cells} |", flush=True)
    print(f"\n{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
