"""Learning curves of a paper's table: the chosen configuration of each row against steps, samples, hours or FLOP."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samebits.errors import ConfigError
from samebits.sweeps.report.analyse import Group
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
    """A curve. All lists: (points,). low, high: mean -+ error, one of SPREADS; equal to the mean if there is no
    error."""

    row: int
    column: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def lines(table: Table, axis: str) -> list[Line]:
    """Return the curves of the objective over the seeds of each cell. Raise ConfigError if a run has not logged the
    axis."""
    key, found = table.objective.key, []
    for row, column, cell in table.cells():
        jobs = [job for job in (cell.group.jobs if cell.group else ()) if job.curves.get(key) and not job.died]
        if not (over_seeds := band(jobs, key)):
            continue
        places = [_place(job, axis) for job in jobs]
        points = [dict(job.curves[key]) for job in jobs]
        x, errors = [], []
        for step in over_seeds.steps:
            x.append(statistics.fmean(place(step) for place, values in zip(places, points) if step in values))
            errors.append(_error(cell.group, jobs, [values.get(step) for values in points], table.spread))
        low, high = ([m + sign * e for m, e in zip(over_seeds.mean, errors)] for sign in (-1, 1))
        found.append(Line(table.rows.index(row), column, x, over_seeds.mean, low, high))
    return found


def _error(group: Group | None, jobs: Sequence[Job], values: Sequence[float | None], spread: str) -> float:
    """Return the error of the mean of the jobs' values; over folds, as for their scores."""
    found: dict[str, list[float]] = {}
    for number, (job, value) in enumerate(zip(jobs, values)):
        if value is not None:
            found.setdefault(group.fold_of(job) if group and group.folds else str(number), []).append(value)
    means = [statistics.fmean(several) for several in found.values()]
    return spread_of(means, spread, group.test_to_train if group else 0.0) or 0.0


def _place(job: Job, axis: str) -> Callable[[int], float]:
    """Return a function that maps a step to its position on the axis."""
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
