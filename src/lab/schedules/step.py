"""Stepwise decay of the learning rate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab.schedules.constant import Constant
from samebits.errors import ConfigError
from samebits.schema import Point, Positive


@dataclass(frozen=True)
class Step(Constant):
    """Linear warmup; the factor is multiplied by gamma at each of the milestones, or at each multiple of `every`. Both
    are fractions of all steps, epochs (10ep) or steps (500st)."""

    uses_rng = False

    milestones: Sequence[Point] | None
    gamma: Positive
    every: Point | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError unless exactly one of milestones and every is given."""
        if (self.milestones is None) == (self.every is None):
            raise ConfigError(
                f"optim.schedule.milestones={self.milestones}, optim.schedule.every={self.every}: give one of them, "
                "and set the other to null"
            )
        if self.every == 0:
            raise ConfigError("optim.schedule.every=0: must be > 0")

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate in this step (from 0)."""
        return super().__call__(step, total_steps) * self.gamma ** self.drops(step, total_steps)

    def drops(self, step: int, total_steps: int) -> int:
        """Return how many times the rate has dropped by this step."""
        if self.every is not None:
            every = self.every
            ends = lambda count: self.step_of("every", every, total_steps, count)  # noqa: E731
            return bisect_right(range(1, step + 2), step, key=ends)
        return sum(
            step >= self.step_of("milestones", point, total_steps)
            if isinstance(point, str)
            else step / total_steps >= point
            for point in self.milestones or ()
        )

    def points(self) -> Iterator[tuple[str, float | str]]:
        """Yield (argument, value) of the points at which the schedule changes the rate."""
        yield from super().points()
        yield from (("milestones", milestone) for milestone in self.milestones or ())
        yield from (("every", every) for every in [self.every] if every is not None)
