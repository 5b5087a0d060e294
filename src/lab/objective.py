"""The loss of one objective as a module, which returns losses and output for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from lab.checks import error_with_hints
from lab.tasks.base import Batch, Task
from samebits.errors import ConfigError


def forward_loss(model: nn.Module, task: Task, batch: Batch, objective: str = "") -> tuple[dict[str, Tensor], Any]:
    """Return ({"loss": (B,), <loss name>: (B,), ...}, output) from Task.losses or, for an objective,
    <objective>_losses."""
    method = f"{objective}_losses" if objective else "losses"
    try:
        returned = getattr(task, method)(model, batch)
    except Exception as error:
        if (mistake := error_with_hints(model, task, batch, error)) is error:
            raise
        raise mistake from error
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ConfigError(
            f"task: {type(task).__name__}.{method} returned a {type(returned).__name__}; it must return (losses, "
            "output)"
        )
    losses, output = returned
    if isinstance(losses, Tensor) or not isinstance(losses, Mapping):  # check_losses checks the values
        return {"loss": losses}, output
    return dict(losses), output


class LossModule(nn.Module):
    """The loss of one objective as a module, which DDP and torch.compile wrap and DataParallel copies."""

    def __init__(self, model: nn.Module, task: Task, objective: str = "") -> None:
        super().__init__()
        self.model, self.task, self.objective = model, task, objective

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        """Return (losses, output); the output is None in training."""
        model = self.model  # read once: nn.Module's __getattr__ is slow
        losses, output = forward_loss(model, self.task, batch, self.objective)
        return losses, None if model.training else output  # not used in training, so free its memory

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return the sharded model's no_sync(), or a context that does nothing: DDP's wrapper has its own no_sync."""
        no_sync: Any = getattr(self.model, "no_sync", nullcontext)
        return no_sync()
