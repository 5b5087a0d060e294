"""The axes of pictures and page: which keys get one, and its scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from samebits.saved import is_seed
from samebits.sweeps.report.analyse import config_keys, is_failure, is_number, numbers, show
from samebits.sweeps.report.read import Job, Study

FEW = 6  # most numbers of a key that get a tick label each
MAX_AXES = 12  # most panels of a picture, most axes of parallel coordinates
NO_SCORE = -0.14  # height of failed jobs, below the axis of the score


def is_log(values: Iterable[Any], said: bool = False) -> bool:
    """Whether the values get a logarithmic axis: said=True asks for it, or they are spaced more evenly on it."""
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
    """Whether scores get a logarithmic axis: all > 0 and max / min > 30, where a linear one shows only the worst."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > 30


@dataclass(frozen=True)
class Axis:
    """Of a swept key, in a picture. kind: linear, log or category. values: distinct, numbers sorted. named: whether
    each value gets a tick label, which categories do, and few numbers that are not too close."""

    key: str
    kind: str
    values: list[Any]
    named: bool

    def place(self, value: Any) -> float | None:
        """Where it stands along the axis, before a logarithm; None: nowhere."""
        if self.kind == "category":
            return self._order.get(repr(value))
        return float(value) if is_number(value) else None

    def height(self, value: Any) -> float | None:
        """The place as 0..1, from the lowest value to the highest, on the axis's scale."""
        place = self.place(value)
        if place is None or self.kind == "category":
            return None if place is None else (place + 0.5) / len(self.values)
        to = math.log if self.kind == "log" else float
        low, high = to(self.values[0]), to(self.values[-1])
        return (to(place) - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """(height, text): of each value, or of five places that are evenly spread."""
        values = self.values
        if not self.named:
            to, back = (math.log, math.exp) if self.kind == "log" else (float, float)
            low, high = to(values[0]), to(values[-1])
            values = [float(f"{back(low + (high - low) * i / 4):.3g}") for i in range(5)]
        return [(height, show(value)) for value in values if (height := self.height(value)) is not None]

    @cached_property
    def _order(self) -> dict[str, float]:
        return {repr(value): float(i) for i, value in enumerate(self.values)}


def axis(study: Study, key: str) -> Axis:
    with_it = [job for job in study.jobs if job.config and not study.lacks(job, key)]
    distinct = list({repr(value): value for job in with_it for value in [study.value(job, key)]}.values())
    values = sorted(distinct) if all(map(is_number, distinct)) else distinct
    kind = "log" if is_log(values, key in study.log_keys) else "linear"
    kind = kind if numbers(values) and None not in values else "category"
    return Axis(key, kind, values, names_fit(values, kind))


def score_axis(study: Study) -> Axis:
    """Of the first objective, over all jobs that have reached something."""
    scores = [score for job in study.jobs if (score := job.provisional(study.objective)) is not None]
    return Axis(study.objective.key, "log" if wants_log(scores) else "linear", sorted(set(scores)), named=False)


def axes(study: Study) -> list[Axis]:
    """Of the swept keys with more than one value among these jobs, except seeds; of the seeds, if there is none."""
    found = [axis(study, key) for key in config_keys(study)]
    return [one for one in found if len(one.values) > 1] or [axis(study, key) for key in study.swept if is_seed(key)]


def names_fit(values: Sequence[Any], kind: str) -> bool:
    """Whether each value gets a tick label: categories do, and up to FEW numbers that are not too close."""
    if kind == "category" or len(values) > FEW:
        return kind == "category"
    places = sorted(math.log(v) if kind == "log" else float(v) for v in values)
    return all(b - a >= 0.09 * (places[-1] - places[0]) for a, b in pairwise(places))


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates. axes: (name, ticks as (height, text)), the score's last; heights: of each job on each axis,
    None where it has no value; a failed job ends below the score's axis, at NO_SCORE."""

    axes: list[tuple[str, list[tuple[float, str]]]]
    heights: list[list[float | None]]


def parallel_lines(study: Study) -> Parallel | None:
    """None: fewer than two keys with an axis, or nothing has a score."""
    found, last = axes(study)[:MAX_AXES], score_axis(study)
    if not study.is_sweep or len(found) < 2 or not last.values:
        return None

    def end(job: Job) -> float | None:
        reached = job.provisional(study.objective)
        return NO_SCORE if reached is None and is_failure(job, study.objective) else last.height(reached)

    heights = [[*(one.height(study.value(job, one.key)) for one in found), end(job)] for job in study.jobs]
    return Parallel([(one.key, one.ticks()) for one in [*found, last]], heights)
