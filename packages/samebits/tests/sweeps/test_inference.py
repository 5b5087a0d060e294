"""Intervals and tests over seeds hold what they claim: coverage, false findings, power; and the t distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from samebits.sweeps.report.inference import Difference, against_best, t_quantile, t_tail
from samebits.sweeps.report.maxt import Table, studentize
from samebits.testing.processes import sample_of

# 97.5 % quantiles of Student's t (any textbook's table)
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 11: 2.201, 30: 2.042, 100: 1.984}


def rows_of(scores: np.ndarray, paired: bool) -> list[dict[object, float]]:
    """scores: (rows, seeds)."""
    return [{(s if paired else (i, s)): float(x) for s, x in enumerate(row)} for i, row in enumerate(scores)]


def complete(rows: int, seeds: int, paired: bool) -> Table:
    return Table(np.ones((rows, seeds), bool), seeds if paired else 0, np.ones(rows, bool))


def level_and_coverage(rows: int, seeds: int, paired: bool, tables: int) -> tuple[float, float]:
    """(Tables with a false "differs", intervals that hold 0), of equal rows."""
    table, random = complete(rows, seeds, paired), np.random.default_rng([rows, seeds, paired, 7])
    null, false, inside = table.null(), 0, 0
    for begin in range(0, tables, step := max(1, 300_000 // (rows * seeds))):
        scores = random.standard_normal((min(step, tables - begin), rows, seeds))
        scores += 3 * random.standard_normal((len(scores), 1, seeds)) * paired
        found = studentize(scores, table, scores.mean(2).argmin(1))  # chosen here, not by what is tested
        false += int((found.largest > null.critical).sum())
        inside += int((found.statistic <= null.typical)[found.others].sum())
    return false / tables, inside / (tables * (rows - 1))


def differences(scores: np.ndarray, paired: bool = True, mode: str = "min") -> list[Difference]:
    return [found for found in against_best(rows_of(scores, paired), mode) if found]


@pytest.mark.slow
def test_the_t_distribution_is_that_of_the_tables() -> None:
    for df, quantile in T.items():
        assert t_quantile(0.95, df) == pytest.approx(quantile, abs=6e-4)
        assert t_tail(quantile, df) == pytest.approx(0.05, abs=5e-5)
    assert t_tail(1.0, 1) == pytest.approx(0.5)  # Cauchy
    assert t_tail(math.inf, 4) == pytest.approx(0)
    assert t_tail(0.0, 4) == pytest.approx(1)


def test_two_rows_of_pairs_are_the_t_test() -> None:
    """Sleep data of Student (1908): t = 4.0621, df 9, p = 0.002833, interval 0.70 to 2.46."""
    drug = np.array(
        [[0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0], [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]]
    )
    [found] = differences(drug)
    assert (found.paired, found.n, found.verdict) == (True, 10, "differs")
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.effect == pytest.approx(4.0621 / math.sqrt(10), abs=1e-4)
    [other] = differences(-drug, mode="max")
    assert (other.low, other.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    [welch] = differences(drug, paired=False)  # t = 1.8608, df 17.776, p = 0.0794, -0.205 to 3.365
    assert welch.p == pytest.approx(0.0794, abs=0.004)
    assert (welch.low, welch.high) == pytest.approx((-0.205, 3.365), abs=0.03)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_is_the_best_among_those_with_the_most_scores(mode: str) -> None:
    sign = 1.0 if mode == "min" else -1.0
    rows = [{s: sign * (x + 0.1 * (s % 2)) for s in range(n)} for x, n in ((2.0, 5), (1.0, 5), (0.0, 4), (3.0, 0))]
    found = against_best(rows, mode)
    assert [each is None for each in found] == [False, True, False, True]
    assert found[2] is not None
    assert found[2].difference == pytest.approx(-sign)


def test_one_row_that_diverged_does_not_hide_the_others() -> None:
    """Its variance is 50 powers of ten above theirs."""
    random = np.random.default_rng(0)
    scores = np.arange(5.0)[:, None] + 0.05 * random.standard_normal((5, 4))
    scores[4] *= 1e25 * random.random(4)
    assert [found.verdict for found in differences(scores)][:3] == ["differs"] * 3


def test_scores_without_any_spread_or_difference() -> None:
    same = differences(np.ones((4, 5)))
    assert [(each.p, each.effect, each.needed) for each in same] == [(1.0, None, None)] * 3
    apart = differences(np.ones((3, 5)) * np.arange(3)[:, None])
    assert [(each.verdict, each.low, each.effect) for each in apart] == [("differs", 1.0, None), ("differs", 2.0, None)]


@pytest.mark.slow
def test_false_findings_and_intervals_quickly() -> None:
    few = [(2, 3, False), (5, 3, True), (10, 5, True), (20, 4, False)]
    for rows, seeds, paired in sample_of(
        few, itertools.product((2, 3, 5, 10, 20, 40), (3, 4, 5, 8, 12), (True, False))
    ):
        level, coverage = level_and_coverage(rows, seeds, paired, 4000)
        assert 0.035 < level < 0.065  # 4 standard errors of 4,000 tables
        assert 0.935 < coverage < 0.965


@pytest.mark.slow
def test_rows_that_differ_make_room_for_others() -> None:
    """Of 12 rows 10 are far off: left with one other, its test is the t test of the pairs."""
    random = np.random.default_rng(1)
    scores = random.standard_normal((12, 6)) * 0.1
    scores[1] += 0.16
    scores[2:] += 50
    found = differences(scores)
    [alone] = differences(scores[:2])
    assert found[0].p == pytest.approx(alone.p)
    assert found[0].p is not None
    assert found[0].p < float(complete(12, 6, True).null().p(np.array([3.0]))[0])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", sample_of([3], [3, 5, 10]))
def test_false_findings_are_rare_where_some_rows_do_differ(seeds: int) -> None:
    """Clusters of equal rows, near each other and far: the step-down must not spend the level twice."""
    random = np.random.default_rng(seeds)
    for apart in (1.0, 3.0, 6.0):
        truth = np.repeat([0.0, apart * math.sqrt(2 / seeds)], 3)
        false, inside, tables = 0, [], 500
        for _ in range(tables):
            found = against_best(rows_of(truth[:, None] + random.standard_normal((6, seeds)), True), "min")
            gap = truth - truth[found.index(None)]
            false += any(each and gap[i] == 0 and each.verdict == "differs" for i, each in enumerate(found))
            inside += [each.low <= gap[i] <= each.high for i, each in enumerate(found) if each]  # type: ignore[operator]
        assert false / tables < 0.05 + 3 * 0.0097
        assert 0.935 < np.mean(inside) < 0.97
