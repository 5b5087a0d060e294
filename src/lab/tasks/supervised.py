"""One model, one loss: classification, regression, next token, and whatever a criterion can say of an output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lab.checks import applied, check_criterion
from lab.tasks.base import Batch, Losses, Metric, Task


class Supervised(Task):
    """model(batch["x"]) -> output. criterion(output, batch) -> (B,) losses, or {"loss": (B,), term: (B,), ...}, whose
    terms a subclass names. metrics: by name, see lab.metrics.base. A criterion that is a module may have parameters."""

    def __init__(self, criterion: Callable[[Any, Batch], Any], metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        check_criterion(criterion)
        self.criterion, self.metrics = criterion, metrics

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        output = model(batch["x"])
        return applied(self.criterion, "task.criterion", output, batch), output
