"""Differences between configurations: right by hand, and what a study's report says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from test_report_parts import made

from samebits.sweeps.report import best_group, groups
from samebits.sweeps.report.compare import Comparison, comparisons
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.page import data
from samebits.sweeps.report.read import Study
from samebits.sweeps.report.sheet import latex_table, tex
from samebits.sweeps.report.text import markdown


def two(a: list[float], b: list[float], shared: bool = True) -> Study:
    """A sweep of lr over two values, with seeds."""
    seeds = [*range(len(a)), *(range(len(b)) if shared else range(100, 100 + len(b)))]
    return made("s", {"optim.lr": [0.1] * len(a) + [0.2] * len(b), "seed": seeds}, [*a, *b])


def latex(study: Study) -> str:
    """The rows of table.tex."""
    text = latex_table(Facts(study).groups)
    return text[text.index(r"\toprule") : text.index(r"\bottomrule")]


def rows(study: Study) -> Sequence[Comparison]:
    return comparisons(study)[study.objective.key]


def test_pairs_of_one_seed_find_what_the_spread_over_seeds_hides() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 8)
    a, b = (1 + noise).tolist(), (1.1 + noise + np.linspace(-0.02, 0.02, 8)).tolist()
    study = two(a, b)
    [paired] = rows(study)
    assert (paired.paired, paired.n, paired.verdict) == (True, 8, "differs")
    assert paired.difference == pytest.approx(0.1)
    assert paired.low < 0.1 < paired.high
    assert paired.effect == pytest.approx(0.1 / np.linspace(-0.02, 0.02, 8).std(ddof=1))
    apart = two(a, b, shared=False)
    [unpaired] = rows(apart)
    assert (unpaired.paired, unpaired.verdict) == (False, "not told from seeds")
    spread = np.var(a, ddof=1) + np.var(b, ddof=1)
    assert unpaired.needed == pytest.approx(7.849 * spread / unpaired.difference**2, rel=0.03)
    assert unpaired.effect == pytest.approx(0.1 / np.sqrt(spread / 2) * (1 - 3 / 55))


def test_pairs_are_of_one_seed_whatever_the_order_of_the_jobs() -> None:
    """And whatever other seeds each group has."""
    noise = np.random.default_rng(0).normal(0, 1, 9)
    a, b = {seed: 1 + noise[seed] for seed in range(8)}, {seed: 1.1 + noise[seed] for seed in (8, 5, 7, 1, 0, 3)}
    columns = {"optim.lr": [0.1] * len(a) + [0.2] * len(b), "seed": [*a, *b]}
    [found] = rows(made("s", columns, [*a.values(), *b.values()]))
    assert (found.paired, found.n) == (True, 5)
    assert abs(found.difference) == pytest.approx(0.1)
    assert found.high - found.low < 1e-9, "the noise of a seed is in both of its pair"


def test_two_seeds_give_no_interval_and_three_find_what_is_large() -> None:
    [found] = rows(two([1.0, 1.1], [9.0, 9.1]))
    assert (found.verdict, found.low, found.p, found.needed) == ("too few seeds", None, None, None)
    assert found.effect == pytest.approx(8 / np.sqrt(0.005) * (1 - 3 / 7))
    study = two([1.0, 1.1, 1.2], [9.0, 9.15, 9.2])
    [found] = rows(study)
    assert found.verdict == "differs"
    cells = markdown(Facts(study))
    assert "| +8.02 | d_z +2.8e+02 |" in cells
    assert "none below 3 seeds" not in cells


def test_a_row_that_was_not_tested_is_not_unmarked_in_the_table() -> None:
    """A paper's reader takes a row without a mark for one that differs."""
    columns = {"optim.lr": [0.1] * 5 + [0.2] * 5 + [0.3], "seed": [*range(5), *range(5), 0]}
    study = made("s", columns, [1.0, 1.1, 1.2, 1.3, 1.4, 9.0, 9.1, 9.2, 9.3, 9.45, 5.0])
    marks = [line.count("dagger") for line in latex(study).splitlines() if "0." in line[:4]]
    assert marks == [0, 1, 0]  # the best, the one with a single score, and the one that differs
    single = made("s", {"optim.lr": [0.1, 0.2]}, [1.0, 2.0])
    assert latex(single).count(r"^\ddagger") == 1


def test_the_same_seed_twice_counts_once() -> None:
    """A search may draw the same values again: that is no second seed, and no reason to prefer them."""
    columns = {"optim.lr": [0.1, 0.1, 0.2], "seed": [0, 0, 0]}
    study = made("s", columns, [2.27, 2.27, 2.17])
    ranked = groups(study)
    assert [group.scores(study.objective) for group in ranked] == [[2.17], [2.27]]
    assert best_group(study) == ranked[0]
    assert ranked[1].std(study.objective) is None
    assert "pruned, unfinished" not in markdown(Facts(study))


def test_the_texts_say_it() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 8)
    study = two((1 + noise).tolist(), (3 + noise * 1.01).tolist())
    said = markdown(Facts(study))
    assert "## Differences from the best: " in said
    assert "| differs |" in said
    (found,) = data(Facts(study))["sections"]["compared"]  # the page's
    (row,) = found["table"]["rows"]
    assert f"| {' | '.join(cell['text'] for cell in row)} |" in said
    assert row[1]["value"] == rows(study)[0].difference
    table = latex(study)
    assert table.count(r"\mathbf") == 1
    assert r"\dagger" not in table
    assert table.count(r" \\" + "\n") == 3  # head and two rows
    unclear = two(noise.tolist(), noise[::-1].tolist())
    assert r"^\dagger" in latex(unclear)
    assert tex("[a_b & c\\d^e>") == r"{[}a\_b \& c\textbackslash{}d\textasciicircum{}e\textgreater{}"
    assert comparisons(two([1.0], [2.0])) == {}
