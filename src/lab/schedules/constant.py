"""Linear warmup, then the peak."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.schema import Share


@dataclass(frozen=True)
class Constant:
    """Linear warmup, then constant; base class of the other schedules. warmup: share of all steps, in [0, 1]."""

    # draws no random numbers. Not inherited (samebits.steps.seed.optimizer_uses_no_rng): one that does not say so may draw
    uses_rng = False
    # The last step trains, too: progress 1 would follow it. False in runs with rules 1: it is the last step's
    every_step_trains = True

    warmup: Share

    def __call__(self, step: int, total_steps: int) -> float:
        warmup_steps = round(self.warmup * total_steps)
        rise = min(1.0, (step + 1) / max(1, warmup_steps))
        end = total_steps if self.every_step_trains else total_steps - 1  # the last step is number total_steps - 1
        gone, span = step - warmup_steps, end - warmup_steps
        progress = gone / span if span > 0 else float(gone >= 0 and step > 0)  # one step after the warmup is the last
        return rise * self.after(min(1.0, max(0.0, progress)), step / total_steps)

    def after(self, progress: float, done: float) -> float:
        """Returns the factor after the warmup. progress: 0 at its first step, 1 after the last step of the run. done:
        share of all steps that are done."""
        return 1.0
