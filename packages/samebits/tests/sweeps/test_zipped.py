"""Zipped keys: the combinations of a sweep whose values form pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.sweeps.zipped import Zip, axes

CHOICES = {
    "optim": ["optim=adamw", "optim=sgd"],
    "seed": ["seed=0", "seed=1", "seed=2"],
    "+optim.lr": ["+optim.lr=1e-3", "+optim.lr=0.1"],
}


def combinations(zipped: Zip, choices: dict[str, Any] = CHOICES) -> list[set[str]]:
    return [{text for part in parts for text in part.values()} for parts in itertools.product(*axes(choices, zipped))]


def test_the_nth_values_of_zipped_keys_are_together_and_crossed_with_the_others() -> None:
    found = combinations(["optim.lr", "optim"])
    assert found == [
        {optim, lr, seed} for optim, lr in zip(CHOICES["optim"], CHOICES["+optim.lr"]) for seed in CHOICES["seed"]
    ]


@pytest.mark.parametrize("zipped", [None, []])
def test_without_zip_all_combinations(zipped: Zip) -> None:
    assert found_twice(combinations(zipped)) == []
    assert len(combinations(zipped)) == 12


def found_twice(sets: list[set[str]]) -> list[set[str]]:
    return [one for one in sets if sets.count(one) > 1]


def test_two_groups_are_crossed_with_each_other() -> None:
    choices = {key: [f"{key}={n}" for n in range(2)] for key in "abcd"}
    found = combinations([["a", "c"], ["b", "d"]], choices)
    assert found == [{f"a={m}", f"c={m}", f"b={n}", f"d={n}"} for m in range(2) for n in range(2)]


@pytest.mark.parametrize(
    ("zipped", "line"),
    [
        (["optim", "seed"], r"optim has 2 values \(adamw, sgd\), but seed has 3 values \(0, 1, 2\)"),
        (["optim", "optim.lr", "seed"], r"optim has 2 values .*, but seed has 3"),
        (["optim", "model"], r"model has no values in this command - add model=..., one value for each value of optim"),
        (["optim"], r"sweep.zip=\[optim\]: expected at least two keys"),
        (["optim", ["seed", "optim.lr"]], r"sweep.zip=\[optim,\[seed,optim.lr\]\]: expected at least two keys"),
        ([["optim", "optim.lr"], ["seed", "optim"]], r"optim is given twice"),
    ],
)
def test_a_mistake_names_the_keys(zipped: Zip, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        combinations(zipped)
