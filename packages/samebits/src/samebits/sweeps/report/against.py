"""The learning curves of a paper's table: what was chosen in each row, against steps, samples, hours or FLOP."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samebits.errors import ConfigError
from samebits.sweeps.report.curves import band
from samebits.sweeps.report.read import Job
from samebits.sweeps.report.table import Table, spread_of

AXES = {
    "step": "optimizer step",
    "samples": "training samples",
    "hours": "hours since the first record",
    "flop": "FLOP of training",
}


@dataclass(frozen=True)
class Line:
    """All lists: (points,). low, high: the mean -+ its error, one of SPREADS; the mean where there is none."""

    row: int
    column: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def lines(table: Table, axis: str) -> list[Line]:
    """Curves of the score that chooses, over the seeds of each cell. ConfigError: a run has not logged this axis."""
    key, found = table.objective.key, []
    for row, column, cell in table.cells():
        jobs = [job for job in (cell.group.jobs if cell.group else ()) if job.curves.get(key)]
        if not (over_seeds := band(jobs, key)):
            continue
        places = [_place(job, axis) for job in jobs]
        points = [dict(job.curves[key]) for job in jobs]
        x, errors = [], []
        for step in over_seeds.steps:
            x.append(statistics.fmean(place(step) for place, values in zip(places, points) if step in values))
            errors.append(spread_of([values[step] for values in points if step in values], table.spread) or 0.0)
        low, high = ([m + sign * e for m, e in zip(over_seeds.mean, errors)] for sign in (-1, 1))
        found.append(Line(table.rows.index(row), column, x, over_seeds.mean, low, high))
    return found


def _place(job: Job, axis: str) -> Callable[[int], float]:
    """A function from a step to the place on the axis."""
    if axis == "step":
        return float
    if axis == "hours":
        seconds = dict(job.seconds)
        return lambda step: seconds[step] / 3600
    samples = job.config.get("trainer.global_batch_size")
    if not isinstance(samples, int):
        raise ConfigError(f"--x-axis {axis}: {job.path} has no trainer.global_batch_size; leave {axis} out")
    if axis == "samples":
        return lambda step: float(step * samples)
    flop = _flop_per_sample(job)
    return lambda step: flop * samples * step


def _flop_per_sample(job: Job) -> float:
    tflop, speed = (dict(job.curves.get(f"perf/{name}_per_s", ())) for name in ("tflop", "samples"))
    found: Sequence[float] = [tflop[step] * 1e12 / speed[step] for step in tflop if speed.get(step)]
    if not found:
        raise ConfigError(
            f"--x-axis flop: {job.path} logged no perf/tflop_per_s; profiler=simple logs it, if it can be counted"
        )
    return statistics.median(found)
