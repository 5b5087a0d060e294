"""Stepwise decay of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lab.schedules.constant import Constant
from samebits.schema import Positive, Rule, Share  # noqa: F401 - Share: type of a field of Constant

# a fraction, because the number of steps may only be known after the data is read
Milestone = Annotated[float, Rule(at_least=0, at_most=1, hint="a share of all steps: epoch 10 of 20 is 0.5")]


@dataclass(frozen=True)
class Step(Constant):
    """Linear warmup; the factor is multiplied by gamma at each milestone. milestones: fractions of all steps, in [0,
    1]."""

    uses_rng = False

    milestones: Sequence[Milestone]
    gamma: Positive

    def after(self, progress: float, done: float) -> float:
        """Return the factor after the warmup."""
        return self.gamma ** sum(done >= milestone for milestone in self.milestones)
