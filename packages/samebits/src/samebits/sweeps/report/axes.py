"""The axes of pictures and of the page: the keys that get an axis, and its scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from samebits.sweeps.report.analyse import config_keys, is_number, numbers, show
from samebits.sweeps.report.read import Job, Study

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
    """The axis of a swept key, or of keys whose values form pairs: then each pair is a category.

    kind: linear, log or category. values: distinct; numbers are sorted. named: True if each value gets a tick label:
    categories, and a few numbers that are not too close. joined: True if lines may connect the values; categories,
    seeds and folds have no order. pair: the keys that form pairs, otherwise empty."""

    key: str
    kind: str
    values: list[Any]
    named: bool
    joined: bool = False
    pair: tuple[str, ...] = ()

    def value(self, study: Study, job: Job) -> Any:
        """Return a job's value on this axis; "-" for a key that the job does not have."""
        found = ["-" if study.lacks(job, key) else study.value(job, key) for key in self.pair or (self.key,)]
        return tuple(found) if self.pair else found[0]

    def text(self, value: Any) -> str:
        """Return a value as text, with a line for each key of a pair."""
        return "\n".join(map(show, value if self.pair else [value]))

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
    return Axis(key, kind, values, names_fit(values, kind), kind != "category" and not study.is_repeat(key))


def pair_axis(study: Study, keys: Sequence[str]) -> Axis:
    """Return the axis of keys whose values form pairs, in the order of the jobs."""
    empty = Axis(", ".join(keys), "category", [], named=True, pair=tuple(keys))
    found = [empty.value(study, job) for job in study.jobs if job.config]
    return replace(empty, values=list({repr(value): value for value in found}.values()))


def score_axis(study: Study) -> Axis:
    """Return the axis of the first objective, over all jobs with a value so far."""
    scores = [score for job in study.jobs if (score := job.provisional(study.objective)) is not None]
    return Axis(study.objective.key, "log" if wants_log(scores) else "linear", sorted(set(scores)), named=False)


def axes(study: Study) -> list[Axis]:
    """Return the axes of the swept keys with more than one value, except seeds and folds; the axes of these if there
    are no others."""
    found = {key: one for key in config_keys(study) if len((one := axis(study, key)).values) > 1}
    for group in study.zipped:
        keys = [key for key in group if key in found]
        if len(keys) > 1 and len((pairs := pair_axis(study, keys)).values) < math.prod(
            len(found[k].values) for k in keys
        ):
            found |= dict.fromkeys(keys, pairs)  # otherwise other commands have added all combinations
    several = list({one.key: one for one in found.values()}.values())
    return several or [axis(study, key) for key in study.swept if study.is_repeat(key)]


def names_fit(values: Sequence[Any], kind: str) -> bool:
    """Return True if each value gets a tick label: categories, and up to FEW numbers that are not too close."""
    if kind == "category" or len(values) > FEW:
        return kind == "category"
    places = sorted(math.log(v) if kind == "log" else float(v) for v in values)
    return all(b - a >= 0.09 * (places[-1] - places[0]) for a, b in pairwise(places))
