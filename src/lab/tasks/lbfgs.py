"""Training with L-BFGS (Liu & Nocedal 1989), an optimizer that evaluates the loss several times per step."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lab.tasks.base import Batch, OptimizerStep
from lab.tasks.supervised import Supervised


class LBFGS(Supervised):
    """Use it with optim=lbfgs. Each step runs the optimizer's iterations on one global batch, which should be the whole
    training set, and a model without dropout, whose masks would differ between the evaluations of a step. The logged
    loss is the loss before these iterations. The optimizer waits for the device.
    """

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Run one step with a closure that computes loss and gradients."""
        micro_batches, before = list(batches), dict[str, Tensor]()

        def closure() -> Tensor:
            values = optimizer_step.gradients("", micro_batches)
            before.update(before or values)
            return values["loss"]

        optimizer_step.update("", closure)
        return before
