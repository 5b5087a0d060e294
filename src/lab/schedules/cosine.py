"""Cosine decay (Loshchilov & Hutter 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lab.schedules.constant import Constant
from samebits.schema import Share


@dataclass(frozen=True)
class Cosine(Constant):
    """Cosine decay from the peak to final * peak after the last step (Loshchilov & Hutter 2017, one period)."""

    uses_rng = False

    final: Share

    def after(self, progress: float, done: float) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
