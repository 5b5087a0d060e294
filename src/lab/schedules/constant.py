"""Linear warmup, then a constant rate."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.schema import Share


@dataclass(frozen=True)
class Constant:
    """Linear warmup, then constant; the base class of the other schedules.

    A schedule is called with (step, total_steps), step from 0, and returns the factor of the learning rate. warmup:
    fraction of all steps, in [0, 1].
    """

    # Not inherited (samebits.steps.seed.declares_no_rng): a subclass that does not set it may use random numbers.
    uses_rng = False
    # True: progress 1 would be the step after the last one, so the last step has a rate above the final one. False in
    # runs of old versions (rules 1): progress was 1 in the last step
    every_step_trains = True

    warmup: Share

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate in this step (from 0)."""
        warmup_steps = round(self.warmup * total_steps)
        rise = min(1.0, (step + 1) / max(1, warmup_steps))
        end = total_steps if self.every_step_trains else total_steps - 1  # the last step is number total_steps - 1
        gone, span = step - warmup_steps, end - warmup_steps
        # a single step after the warmup is the last step
        progress = gone / span if span > 0 else float(gone >= 0 and step > 0)
        return rise * self.after(min(1.0, max(0.0, progress)), step / total_steps)

    def after(self, progress: float, done: float) -> float:
        """Return the factor after the warmup. progress: 0 at the first step after it, 1 after the last step of the run.
        done: step / total_steps."""
        return 1.0
