"""The axes of pictures and of the page: the keys that get an axis, and its scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from samebits.sweeps.report.analyse import config_keys, is_number, numbers
from samebits.sweeps.report.read import Study

FEW = 6  # maximum number of values that each get a tick label
MAX_AXES = 12  # maximum number of panels of a picture


def is_log(values: Iterable[Any], said: bool = False) -> bool:
    """Return True if the values get a logarithmic axis: requested by said=True, or more evenly spaced on it."""
    distinct = sorted(set(numbers(values) or ()))
    if not distinct or distinct[0] <= 0:
        return False
    if said:
        return True
    low, high, middle = distinct[0], distinct[-1], statistics.median(distinct)
    if high / low < 8:
        return False
    linear = (middle - low) / (high - low)
    logarithmic = math.log(middle / low) / math.log(high / low)
    return len(distinct) == 2 or abs(logarithmic - 0.5) < abs(linear - 0.5)


def wants_log(values: Iterable[float]) -> bool:
    """Return True if scores get a logarithmic axis: all > 0 and max / min > 30, because a linear axis shows only the
    worst."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > 30


@dataclass(frozen=True)
class Axis:
    """The axis of a swept key. kind: linear, log or category. values: distinct; numbers are sorted. named: True if each
    value gets a tick label: categories, and a few numbers that are not too close."""

    key: str
    kind: str
    values: list[Any]
    named: bool

    def place(self, value: Any) -> float | None:
        """Return the position of a value on the axis, before a logarithm; None if it has none."""
        if self.kind == "category":
            return self._order.get(repr(value))
        return float(value) if is_number(value) else None

    @cached_property
    def _order(self) -> dict[str, float]:
        return {repr(value): float(i) for i, value in enumerate(self.values)}


def axis(study: Study, key: str) -> Axis:
    """Return the axis of a swept key."""
    with_it = [job for job in study.jobs if job.config and not study.lacks(job, key)]
    distinct = list({repr(value): value for job in with_it for value in [study.value(job, key)]}.values())
    values = sorted(distinct) if all(map(is_number, distinct)) else distinct
    kind = "log" if is_log(values, key in study.log_keys) else "linear"
    kind = kind if numbers(values) and None not in values else "category"
    return Axis(key, kind, values, names_fit(values, kind))


def score_axis(study: Study) -> Axis:
    """Return the axis of the first objective, over all jobs with a value so far."""
    scores = [score for job in study.jobs if (score := job.provisional(study.objective)) is not None]
    return Axis(study.objective.key, "log" if wants_log(scores) else "linear", sorted(set(scores)), named=False)


def axes(study: Study) -> list[Axis]:
    """Return the axes of the swept keys with more than one value, except seeds and folds; the axes of these if there
    are no others."""
    found = [axis(study, key) for key in config_keys(study)]
    return [one for one in found if len(one.values) > 1] or [
        axis(study, key) for key in study.swept if study.is_repeat(key)
    ]


def names_fit(values: Sequence[Any], kind: str) -> bool:
    """Return True if each value gets a tick label: categories, and up to FEW numbers that are not too close."""
    if kind == "category" or len(values) > FEW:
        return kind == "category"
    places = sorted(math.log(v) if kind == "log" else float(v) for v in values)
    return all(b - a >= 0.09 * (places[-1] - places[0]) for a, b in pairwise(places))
