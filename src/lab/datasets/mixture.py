"""Assign samples to the parts of data=mixed: a function of the sample id and the weights, with exact shares in every
batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from samebits.errors import ConfigError

MOST = 2**31  # limit of the sum of a stage's integer weights


class MixtureOrder:
    """The order of data=mixed. stages: [(first sample id, integer weight of each part)], increasing from 0. orders: the
    order of each part. starts: first row of each part."""

    def __init__(self, stages: list[tuple[int, list[int]]], orders: list[Any], starts: np.ndarray) -> None:
        self._orders, self._starts = orders, starts
        self._begins = np.asarray([begin for begin, _ in stages], dtype=np.int64)
        self._weights = [weights for _, weights in stages]
        self._used = [np.zeros(len(orders), dtype=np.int64)]  # samples of each part before a stage
        for length, weights in zip(np.diff(self._begins).tolist(), self._weights):
            self._used.append(self._used[-1] + counts(length, weights))

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return the rows of these sample ids, (B,) int64 -> (B,) int64."""
        rows = np.empty_like(sample_ids)
        stage = np.searchsorted(self._begins, sample_ids, side="right") - 1
        for s in np.unique(stage).tolist():
            here = np.flatnonzero(stage == s)
            of, index = assign(sample_ids[here] - self._begins[s], self._weights[s])
            for k in np.unique(of).tolist():
                at = here[of == k]
                rows[at] = self._starts[k] + self._orders[k](index[of == k] + self._used[s][k])
        return rows


def assign(sample_ids: np.ndarray, weights: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of each sample, (B,), and how many samples of that part are before it, (B,). sample_ids: (B,)
    int64.

    First each id is assigned to the first part or to the rest, then the rest to the second part or the others, and so
    on, each time as evenly as the pixels of a line (Bresenham 1965). A part has its share of any range of consecutive
    ids to within len(weights) - 1; exactly, if all shares are integers and it starts at a multiple of its length.
    """
    of, index = np.full(len(sample_ids), -1), np.zeros(len(sample_ids), dtype=np.int64)
    left, total, open_ = sample_ids.copy(), sum(weights), np.ones(len(sample_ids), dtype=bool)
    for k, weight in enumerate(weights):
        if not weight:
            continue
        before = _line(left, weight, total)
        mine = open_ & (_line(left + 1, weight, total) > before)
        of[mine], index[mine] = k, before[mine]
        left, total, open_ = left - before, total - weight, open_ & ~mine
    return of, index


def counts(length: int, weights: list[int]) -> np.ndarray:
    """Return the number of samples of each part among the first `length`, (parts,)."""
    samples, left, total = np.zeros(len(weights), dtype=np.int64), np.asarray([length]), sum(weights)
    for k, weight in enumerate(weights):
        if weight:
            samples[k] = _line(left, weight, total)[0]
            left, total = left - samples[k], total - weight
    return samples


def _line(numbers: np.ndarray, weight: int, total: int) -> np.ndarray:
    """Return numbers * weight / total, rounded, without overflow of the product."""
    return numbers // total * weight + (numbers % total * weight + total // 2) // total


def stages_of(weights: Mapping[str, Any], names: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Return [(first sample id, integer weight of each part)] of data.weights, increasing from 0. Raise ConfigError if
    names or values are invalid."""
    if set(weights) != set(names):
        raise ConfigError(f"data.weights: has {sorted(weights)}; give one for each part: {sorted(names)}")
    steps = {name: _steps(name, weights[name]) for name in names}
    stages = []
    for begin in sorted({begin for weights_of in steps.values() for begin in weights_of}):
        present = [steps[name][max(b for b in steps[name] if b <= begin)] for name in names]
        scale = lcm(*(weight.denominator for weight in present))
        integers = [int(weight * scale) for weight in present]
        integers = [weight // (gcd(*integers) or 1) for weight in integers]
        if not 0 < sum(integers) < MOST:
            why = "are all 0" if not sum(integers) else "have too many digits: use small integers such as 1 and 7"
            raise ConfigError(f"data.weights={dict(weights)}: the weights from sample {begin} on {why}")
        stages.append((begin, integers))
    return stages


def _steps(name: str, value: Any) -> dict[int, Fraction]:
    """Return {first sample id: weight}. Raise ConfigError if the value is invalid."""
    pairs = value if isinstance(value, list) else [[0, value]]
    wrong = (
        f"data.weights.{name}={value}: must be a number >= 0, or a list of [first sample id, number] that starts at 0"
    )
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


def first_part(key: str, _parent_: Any) -> Any:
    """Return a key's value in the first part that has it, or None: ${first_part:num_outputs} with `data.parts`."""
    if not _parent_.parts:
        raise ConfigError("data.parts: is empty - add parts, such as +data@data.parts.old=h5 +data.weights.old=1")
    said = (node.get(key) for node in _parent_.parts.values() if hasattr(node, "get"))
    return next((value for value in said if value is not None), None)
