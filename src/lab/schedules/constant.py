"""Linear warmup, then a constant rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from samebits.errors import ConfigError
from samebits.schema import Point, parse_point


@dataclass(frozen=True)
class Epochs:
    """The length of an epoch in optimizer steps: k epochs are done after step round(k * steps + ahead).

    steps: of one epoch, may be a fraction. ahead: steps done minus the number of steps that the same samples would take
    with the present batch size; 0 unless a resume has changed the batch size."""

    steps: float
    ahead: float = 0.0


@dataclass(frozen=True)
class Constant:
    """Linear warmup, then constant; the base class of the other schedules.

    A schedule is called with (step, total_steps), step from 0, and returns the factor of the learning rate. warmup: its
    length, as a fraction of all steps, epochs or steps.
    """

    # Not inherited (samebits.steps.seed.declares_no_rng): a subclass that does not set it may use random numbers.
    uses_rng = False
    # True: progress is 1 in the step after the last one, so the last step has a rate above the final one. False in runs
    # that began with version 0.2 (rules 1): progress is 1 in the last step
    every_step_trains = True
    epochs: ClassVar[Epochs | None] = None  # set by lab.builders.make_factor, for points such as 10ep

    warmup: Point

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate in this step (from 0)."""
        warmup_steps = self.step_of("warmup", self.warmup, total_steps)
        rise = min(1.0, (step + 1) / max(1, warmup_steps))
        end = total_steps if self.every_step_trains else total_steps - 1  # the last step is number total_steps - 1
        gone, span = step - warmup_steps, end - warmup_steps
        # a single step after the warmup is the last step
        progress = gone / span if span > 0 else float(gone >= 0 and step > 0)
        return rise * self.after(min(1.0, max(0.0, progress)), step / total_steps)

    def step_of(self, name: str, point: float | str, total_steps: int, times: int = 1) -> int:
        """Return the first step after `times` times a share of all steps, epochs or steps. name: the argument, for
        messages."""
        value, unit = parse_point(point, name)
        if unit == "st":
            return times * int(value)
        if not unit:
            return round(times * (value * total_steps))
        if self.epochs is None:
            raise ConfigError(f"{type(self).__name__}.{name}={point}: set `epochs` first, as lab.builders does")
        return round(times * (value * self.epochs.steps) + self.epochs.ahead)

    def points(self) -> Iterator[tuple[str, float | str]]:
        """Yield (argument, value) of the points at which the schedule changes the rate."""
        yield "warmup", self.warmup

    def after(self, progress: float, done: float) -> float:
        """Return the factor after the warmup. progress: 0 at the first step after it, 1 after the last step of the run.
        done: step / total_steps."""
        return 1.0
