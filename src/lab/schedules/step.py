"""Decay in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lab.schedules.constant import Constant
from samebits.schema import Positive, Rule, Share  # noqa: F401 - Share: of a field of Constant

# a share also where the number of steps is not known before the data is
Milestone = Annotated[float, Rule(at_least=0, at_most=1, says="a share of all steps: epoch 10 of 20 is 0.5")]


@dataclass(frozen=True)
class Step(Constant):
    """The rate is multiplied by gamma at each milestone, given as a share of all steps."""

    uses_rng = False

    milestones: Sequence[Milestone]
    gamma: Positive

    def after(self, progress: float, done: float) -> float:
        return self.gamma ** sum(done >= milestone for milestone in self.milestones)
