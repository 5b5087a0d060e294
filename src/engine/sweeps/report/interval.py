"""Student's t interval of a mean, without scipy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEAST = 3  # fewest seeds that get an interval


def mean_interval(scores: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The interval that holds the mean with this chance, for normal scores; None below LEAST scores."""
    if len(scores) < LEAST:
        return None
    half = t_quantile(level, len(scores) - 1) * statistics.stdev(scores) / math.sqrt(len(scores))
    return statistics.fmean(scores) - half, statistics.fmean(scores) + half


def t_quantile(level: float, dof: int) -> float:
    """t with P(|T| < t) = level, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, dof) < level else (low, middle)
    return low


def within(t: float, dof: int) -> float:
    """P(|T| < t) for a whole number of degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(dof))
    term, total = (math.cos(angle), math.cos(angle)) if dof % 2 else (1.0, 1.0)
    for k in range(2 + dof % 2, dof - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    if dof % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if dof > 1 else 0.0))
