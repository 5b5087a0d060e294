"""Cosine decay of the learning rate (Loshchilov & Hutter 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lab.schedules.constant import Constant
from samebits.schema import Point, Share  # noqa: F401 - Point: type of a field of Constant


@dataclass(frozen=True)
class Cosine(Constant):
    """Cosine decay (one period) from the peak to final * peak, which is reached after the last step."""

    uses_rng = False

    final: Share

    def after(self, progress: float, done: float) -> float:
        """Return the factor after the warmup."""
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
