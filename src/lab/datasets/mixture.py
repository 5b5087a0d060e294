"""Which part of data=mixed a sample is from: a function of its number and the weights, exact in every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from samebits.errors import ConfigError

MOST = 2**31  # of the sum of a stage's weights, as whole numbers


class MixtureOrder:
    """stages: [(first sample number, each part's whole-numbered weight)], rising from 0."""

    def __init__(self, stages: list[tuple[int, list[int]]], orders: list[Any], starts: np.ndarray) -> None:
        self._orders, self._starts = orders, starts
        self._begins = np.asarray([begin for begin, _ in stages], dtype=np.int64)
        self._weights = [weights for _, weights in stages]
        self._used = [np.zeros(len(orders), dtype=np.int64)]  # samples of each part before a stage
        for length, weights in zip(np.diff(self._begins).tolist(), self._weights):
            self._used.append(self._used[-1] + counts(length, weights))

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 -> (B,) int64 rows."""
        rows = np.empty_like(numbers)
        stage = np.searchsorted(self._begins, numbers, side="right") - 1
        for s in np.unique(stage).tolist():
            here = np.flatnonzero(stage == s)
            of, index = assign(numbers[here] - self._begins[s], self._weights[s])
            for k in np.unique(of).tolist():
                at = here[of == k]
                rows[at] = self._starts[k] + self._orders[k](index[of == k] + self._used[s][k])
        return rows


def assign(numbers: np.ndarray, weights: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """numbers: (B,) int64 -> (B,) which part, and (B,) how many samples of that part came before.

    The first part against the others, the second against those after it, ...; each as a straight line is drawn in
    pixels. So any run of numbers holds each part's share to within one or two samples. A run whose share is a whole
    number holds it exactly, if it begins at a multiple of its length.
    """
    of, index = np.full(len(numbers), -1), np.zeros(len(numbers), dtype=np.int64)
    left, total, open_ = numbers.copy(), sum(weights), np.ones(len(numbers), dtype=bool)
    for k, weight in enumerate(weights):
        if not weight:
            continue
        before = _line(left, weight, total)
        mine = open_ & (_line(left + 1, weight, total) > before)
        of[mine], index[mine] = k, before[mine]
        left, total, open_ = left - before, total - weight, open_ & ~mine
    return of, index


def counts(length: int, weights: list[int]) -> np.ndarray:
    """(parts,) samples of each part among the first `length`."""
    samples, left, total = np.zeros(len(weights), dtype=np.int64), np.asarray([length]), sum(weights)
    for k, weight in enumerate(weights):
        if weight:
            samples[k] = _line(left, weight, total)[0]
            left, total = left - samples[k], total - weight
    return samples


def _line(numbers: np.ndarray, weight: int, total: int) -> np.ndarray:
    """numbers * weight / total, rounded, without the product, which may not fit."""
    return numbers // total * weight + (numbers % total * weight + total // 2) // total


def stages_of(weights: Mapping[str, Any], names: Sequence[str]) -> list[tuple[int, list[int]]]:
    """data.weights -> [(first sample number, each part's weight as a whole number)], rising from 0."""
    if set(weights) != set(names):
        raise ConfigError(f"data.weights: names {sorted(weights)}; give one for each part: {sorted(names)}")
    steps = {name: _steps(name, weights[name]) for name in names}
    stages = []
    for begin in sorted({begin for one in steps.values() for begin in one}):
        now = [one[max(b for b in one if b <= begin)] for one in (steps[name] for name in names)]
        scale = lcm(*(one.denominator for one in now))
        whole = [int(one * scale) for one in now]
        whole = [one // (gcd(*whole) or 1) for one in whole]
        if not 0 < sum(whole) < MOST:
            why = "are all 0" if not sum(whole) else "have too many digits: give small whole numbers, 1 and 7"
            raise ConfigError(f"data.weights={dict(weights)}: from sample {begin} on they {why}")
        stages.append((begin, whole))
    return stages


def _steps(name: str, value: Any) -> dict[int, Fraction]:
    """{from this sample number on: the weight}"""
    pairs = value if isinstance(value, list) else [[0, value]]
    wrong = f"data.weights.{name}={value}: give a number >= 0, or a list of [first sample number, number], from 0 on"
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(wrong)
    begins = [begin for begin, _ in pairs]
    for begin, weight in pairs:
        numbers = isinstance(begin, int) and isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not numbers or not 0 <= weight < MOST:
            raise ConfigError(wrong)
    if begins[:1] != [0] or begins != sorted(set(begins)):
        raise ConfigError(wrong)
    return {begin: Fraction(str(weight)) for begin, weight in pairs}
