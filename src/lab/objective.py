"""What one objective of a task minimises, as a module: called with a batch, it returns the losses and the output."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from lab.checks import with_error_hints
from lab.tasks.base import Batch, Task
from samebits.errors import ConfigError


@with_error_hints
def forward_loss(model: nn.Module, task: Task, batch: Batch, objective: str = "") -> tuple[dict[str, Tensor], Any]:
    """Returns the task's ({"loss": (B,), term: (B,), ...}, output), in training and in evaluation: Task.losses."""
    method = f"{objective}_losses" if objective else "losses"
    returned = getattr(task, method)(model, batch)
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ConfigError(
            f"task: {type(task).__name__}.{method} returned a {type(returned).__name__}; it must return (losses, "
            "output)"
        )
    losses, output = returned
    return dict(losses) if isinstance(losses, Mapping) else {"loss": losses}, output  # no tensor: check_per_sample


class LossModule(nn.Module):
    """One objective of the task, called with a batch: what DDP wraps, the compiler compiles and trainer=dp copies."""

    def __init__(self, model: nn.Module, task: Task, name: str = "") -> None:
        super().__init__()
        self.model, self.task, self.name = model, task, name

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        losses, output = forward_loss(self.model, self.task, batch, self.name)
        return losses, None if self.model.training else output  # nothing in training reads it, so it needs no memory

    def no_sync(self) -> AbstractContextManager[Any]:
        """The sharded model's no_sync(); does nothing for other models, whose DDP wrapper has its own."""
        no_sync: Any = getattr(self.model, "no_sync", nullcontext)
        return no_sync()
