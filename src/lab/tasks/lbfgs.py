"""Training by an optimizer that asks for the loss several times a step: L-BFGS (Liu & Nocedal 1989)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lab.tasks.base import Batch, OptimizerStep
from lab.tasks.supervised import Supervised


class LBFGS(Supervised):
    """With optim=lbfgs: each step is the optimizer's iterations on one global batch, best the whole set. What is logged
    is the loss before them. The optimizer waits for the device."""

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        held, before = list(batches), dict[str, Tensor]()

        def closure() -> Tensor:
            values = optimizer_step.gradients("", held)
            before.update(before or values)
            return values["loss"]

        optimizer_step.update("", closure)
        return before
