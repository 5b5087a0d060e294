"""Reduce the learning rate if the score does not improve."""

from __future__ import annotations

import math
from typing import Annotated, Any

from lab.schedules.constant import Constant
from samebits.schema import Count, NotNegative, Point, Rule, Share


class Plateau:
    """Linear warmup, then constant. The factor is multiplied by gamma after `patience` evaluations in a row
    without an improvement of the monitored score, down to `final`.

    threshold: a score improves if it is better than the best one by more than this fraction of it. Evaluations during
    the warmup do not count.
    """

    uses_rng = False

    def __init__(
        self,
        warmup: Point,
        gamma: Annotated[float, Rule(above=0, below=1)],
        patience: Count,
        threshold: NotNegative,
        final: Share,
    ) -> None:
        self.warm, self.gamma, self.patience = Constant(warmup), gamma, patience
        self.threshold, self.final = threshold, final
        self.scale, self.stale = 1.0, 0
        self.best: float | None = None

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate in this step (from 0)."""
        return self.scale * self.warm(step, total_steps)

    def on_score(self, score: float, step: int, total_steps: int) -> bool:
        """Process the score of an evaluation (smaller is better). Return True if the factor was reduced."""
        if step < self.warm.step_of("warmup", self.warm.warmup, total_steps):
            return False
        if math.isfinite(score) and (self.best is None or score < self.best - self.threshold * abs(self.best)):
            self.best, self.stale = score, 0
            return False
        self.stale += 1
        lower = max(self.final, self.gamma * self.scale)
        if self.stale < self.patience or math.isclose(lower, self.scale):
            return False
        self.scale, self.stale = lower, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"scale": self.scale, "stale": self.stale, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.scale, self.stale, self.best = state["scale"], state["stale"], state["best"]
