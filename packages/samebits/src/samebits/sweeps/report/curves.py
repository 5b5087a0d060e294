"""Learning curves of a group: mean over its seeds, and a band around it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.sweeps.report.axes import wants_log
from samebits.sweeps.report.read import Job


@dataclass(frozen=True)
class Band:
    """A mean curve. All lists: (steps,). low, high: mean -+ standard deviation; equal to the mean for one seed."""

    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int


def band(jobs: Sequence[Job], key: str) -> Band | None:
    """Return the band over jobs that did not fail, at steps that every job still running at that step has logged; None
    if there are no values."""
    points = [dict(job.curves[key]) for job in jobs if not job.died and job.curves.get(key)]
    if not points:
        return None
    steps = [s for s in sorted({s for p in points for s in p}) if all(s in p for p in points if max(p) >= s)]
    rows = [[p[step] for p in points if step in p] for step in steps]
    means = [statistics.fmean(row) for row in rows]
    stds = [statistics.stdev(row) if len(row) > 1 else 0.0 for row in rows]
    low, high = ([m + sign * s for m, s in zip(means, stds)] for sign in (-1, 1))
    return Band(steps, means, low, high, seeds=len(points))


@dataclass(frozen=True)
class CurveScale:
    """The scale of an axis. log: True for a logarithmic axis. limits: ends of the axis if one curve is far above the
    others (a loss of 1e20), otherwise None."""

    log: bool
    limits: tuple[float, float] | None


def curve_scale(curves: Sequence[Sequence[float]]) -> CurveScale:
    """Return the scale of the vertical axis. curves: the values of each group."""
    tops = sorted(max(curve) for curve in curves if curve)
    positive = [value for curve in curves for value in curve if value > 0]
    log = wants_log(value for curve in curves for value in curve if value != 0)
    usual = tops[(len(tops) - 1) // 2] if tops else 0.0
    cut = usual > 0 and tops[-1] > 1e3 * usual
    return CurveScale(log, (0.8 * min(positive), 10 * usual) if cut else None)


def values_of(jobs: Sequence[Job], key: str) -> list[float]:
    """Return all logged values of a key."""
    return [value for job in jobs for _, value in job.curves.get(key, ())]


def keys_of(jobs: Sequence[Job], first: Sequence[str]) -> list[str]:
    """Return all logged keys: `first`, then val (val_hard, ...), train, test and the others."""
    found = dict.fromkeys(key for job in jobs for key in job.curves)
    order = ("val", "train", "test", "")

    def place(key: str) -> tuple[int, str, str]:
        split = key.partition("/")[0]
        return next(i for i, beginning in enumerate(order) if split.startswith(beginning)), split, key

    rest = sorted((k for k in found if k not in first), key=place)
    return [*(k for k in first if k in found), *rest]
