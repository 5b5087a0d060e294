"""Supervised training with one criterion: classification, regression, next token, or any other loss of (output,
batch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lab.checks import call_with_hints, check_criterion
from lab.tasks.base import Batch, Losses, Metric, Task


class Supervised(Task):
    """model(batch["x"]) -> output.

    criterion: (output, batch) -> (B,) losses, or {"loss": (B,), name: (B,), ...} in a subclass whose `loss_names` are
    these names. It may be an nn.Module; its parameters are trained. metrics: {name: metric}, see lab.metrics.base.
    """

    def __init__(self, criterion: Callable[[Any, Batch], Any], metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        check_criterion(criterion)
        self.criterion, self.metrics = criterion, metrics

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Return the criterion's losses, and the model's output."""
        output = self.predict(model, batch)
        return call_with_hints(self.criterion, "task.criterion", output, batch), output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the model's output for batch["x"]."""
        return model(batch["x"])
