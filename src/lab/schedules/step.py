"""Decay in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.schema import Positive, Share
from lab.schedules.constant import Constant


@dataclass(frozen=True)
class Step(Constant):
    """The rate is multiplied by gamma at each milestone, given as a share of all steps."""

    draws = False

    milestones: Sequence[Share]
    gamma: Positive

    def after(self, progress: float, done: float) -> float:
        return self.gamma ** sum(done >= milestone for milestone in self.milestones)
