"""Linear decay of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from lab.schedules.constant import Constant
from samebits.schema import Point, Share  # noqa: F401 - Point: type of a field of Constant


@dataclass(frozen=True)
class Linear(Constant):
    """Linear decay from the peak to final * peak, which is reached after the last step."""

    uses_rng = False

    final: Share

    def after(self, progress: float, done: float) -> float:
        """Return the factor after the warmup."""
        return 1 - (1 - self.final) * progress
