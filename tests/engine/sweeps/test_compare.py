"""Differences between configurations: right by hand, and false findings as rare as the level says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from test_report import made

from engine.sweeps.report.analyse import best_group, groups
from engine.sweeps.report.compare import Comparison, comparisons, holm, permutations, sign_flips
from engine.sweeps.report.page import data
from engine.sweeps.report.read import Study
from engine.sweeps.report.text import latex, markdown, tex


def two(a: list[float], b: list[float], shared: bool = True) -> Study:
    """A sweep of lr over two values, with seeds."""
    seeds = [*range(len(a)), *(range(len(b)) if shared else range(100, 100 + len(b)))]
    return made("s", {"optim.lr": [0.1] * len(a) + [0.2] * len(b), "seed": seeds}, [*a, *b])


def rows(study: Study) -> Sequence[Comparison]:
    return comparisons(study)[study.objective.key]


def test_sign_flips_by_hand() -> None:
    pairs = np.array([1.0, 2.0, 3.0])
    means = [abs(np.dot(signs, pairs)) / 3 for signs in itertools.product((-1, 1), repeat=3)]
    assert sign_flips(pairs, np.random.default_rng(0)) == sum(m >= 2 for m in means) / 8 == 0.25
    assert sign_flips(np.zeros(4), np.random.default_rng(0)) == 1.0
    many = np.random.default_rng(1).normal(0.5, 1, 20)  # sampled: as counted exactly, to sampling error
    exact = np.mean(
        np.abs((np.array(list(itertools.product((-1, 1), repeat=20))[:]) * many).mean(1)) >= abs(many.mean())
    )
    assert sign_flips(many, np.random.default_rng(0)) == pytest.approx(exact, abs=0.01)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_pairs_of_one_seed_find_what_the_spread_over_seeds_hides() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 8)
    a, b = (1 + noise).tolist(), (1.1 + noise + np.linspace(-0.02, 0.02, 8)).tolist()
    study = two(a, b)
    [paired] = rows(study)
    assert (paired.paired, paired.n, paired.verdict) == (True, 8, "differs")
    assert paired.difference == pytest.approx(0.1)
    assert paired.low < 0.1 < paired.high
    assert paired.p == 2 / 2**8
    apart = two(a, b, shared=False)
    [unpaired] = rows(apart)
    assert (unpaired.paired, unpaired.verdict) == (False, "not told from seeds")
    spread = np.var(a, ddof=1) + np.var(b, ddof=1)
    assert unpaired.needed == math.ceil(7.849 * spread / unpaired.difference**2)


def test_pairs_are_of_one_seed_whatever_the_order_of_the_jobs() -> None:
    """And whatever other seeds each group has."""
    noise = np.random.default_rng(0).normal(0, 1, 9)
    a, b = {seed: 1 + noise[seed] for seed in range(8)}, {seed: 1.1 + noise[seed] for seed in (8, 5, 7, 1, 0, 3)}
    columns = {"optim.lr": [0.1] * len(a) + [0.2] * len(b), "seed": [*a, *b]}
    [found] = rows(made("s", columns, [*a.values(), *b.values()]))
    assert (found.paired, found.n) == (True, 5)
    assert abs(found.difference) == pytest.approx(0.1)
    assert found.high - found.low < 1e-9, "the noise of a seed is in both of its pair"


def test_the_observed_case_is_one_of_those_that_are_drawn() -> None:
    """Of as many as 2.7 million, the 10,000 drawn need not hold it: no p is 0."""
    one, random = np.arange(12.0), np.random.default_rng(0)
    assert permutations(one, one + 1000, random) == pytest.approx(1 / 10_001)
    assert sign_flips(np.ones(40), random) == pytest.approx(1 / 10_001)


def test_three_seeds_are_too_few_to_tell_anything() -> None:
    study = two([1.0, 1.1, 1.2], [9.0, 9.1, 9.2])
    [found] = rows(study)
    assert found.verdict == "too few seeds to tell"


def test_a_correction_for_more_rows_needs_more_seeds() -> None:
    """Six pairs that all agree: p = 2 / 64 in one comparison, 4 / 64 in each of two."""
    scores = [1 + 0.01 * k for k in range(6)] + [2 + 0.01 * k for k in range(6)]
    [one] = rows(two(scores[:6], scores[6:]))
    assert (one.verdict, one.needed) == ("differs", 6)
    columns = {"optim.lr": [0.1] * 6 + [0.2] * 6 + [0.3] * 6, "seed": [*range(6)] * 3}
    three = made("s", columns, [*scores, *(3 + 0.01 * k for k in range(6))])
    for found in rows(three):
        assert found.p == pytest.approx(4 / 64)
        assert (found.verdict, found.needed) == ("too few seeds to tell", 7)
    assert latex(three, comparisons(three)).count(r"^\ddagger") == 2


def test_the_same_seed_twice_counts_once() -> None:
    """A search may draw the same values again: that is no second seed, and no reason to prefer them."""
    columns = {"optim.lr": [0.1, 0.1, 0.2], "seed": [0, 0, 0]}
    study = made("s", columns, [2.27, 2.27, 2.17])
    ranked = groups(study)
    assert [group.scores(study.objective) for group in ranked] == [[2.17], [2.27]]
    assert best_group(study) == ranked[0]
    assert ranked[1].std(study.objective) is None


def test_false_findings_are_as_rare_as_the_level_says() -> None:
    random = np.random.default_rng(0)
    for n in (6, 9):
        found = [sign_flips(random.normal(size=n), random) < 0.05 for _ in range(2000)]
        assert np.mean(found) < 0.06
    found = [permutations(random.normal(size=6), random.normal(size=6), random) < 0.05 for _ in range(60)]
    assert np.mean(found) < 0.2


def test_the_texts_say_it() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 8)
    study = two((1 + noise).tolist(), (3 + noise * 1.01).tolist())
    said = markdown(study, comparisons(study), None, [], None)
    assert "## More than seeds? " in said
    assert "| differs |" in said
    (found,) = data(study, comparisons(study), None)["comparisons"]  # the page's
    (row,) = found["rows"]
    assert f"| {' | '.join(row['texts'])} |" in said
    assert row["values"][1] == rows(study)[0].difference
    table = latex(study, comparisons(study))
    assert table.count(r"\mathbf") == 1
    assert r"\dagger" not in table
    assert table.count(r" \\" + "\n") == 3  # head and two rows
    unclear = two(noise.tolist(), noise[::-1].tolist())
    assert r"^\dagger" in latex(unclear, comparisons(unclear))
    assert tex("a_b & c\\d^e") == r"a\_b \& c\textbackslash{}d\textasciicircum{}e"
    assert comparisons(two([1.0], [2.0])) == {}
