"""Define the parts of a step that profiler=simple times, and the losses whose FLOP are counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from lab import loop, optimizer_step
from lab.objective import LossModule
from lab.tasks.base import Batch, Task

# (module that calls a function, its name) -> name of the part; add a line for a new function that takes time
PARTS: dict[tuple[Any, str], str] = {
    (optimizer_step, "clip"): "clip",
    (optimizer_step, "update"): "optimizer",
    (loop, "log_train"): "log",
    (loop, "validate_and_save_best"): "evaluation",
    (loop, "save"): "save",
}
OUTSIDE_STEP = {  # advice for parts outside of the steps
    "evaluation": "raise trainer.eval_every, or set trainer.max_eval_batches",
    "save": "raise trainer.save_every",
    "log": "raise trainer.log_every",
    "transform": "compute less in data.transforms, or once, when the file is packed",
}


def losses_of(model: nn.Module, task: Task) -> dict[str, Callable[[list[nn.Module], Batch], Tensor]]:
    """Return {objective: function ([model, task], batch) -> the summed loss, 0-d}. As in training, the function takes
    gradients only of the parameters that the objective trains: it freezes the others of this model and task."""

    def loss(name: str, copies: list[nn.Module], batch: Batch) -> Tensor:
        own_model, own_task = copies[0], cast("Task", copies[1])
        if name:
            trained = {id(p) for module in own_task.objectives(own_model)[name] for p in module.parameters()}
            for p in (*own_model.parameters(), *own_task.parameters()):
                p.requires_grad_(p.requires_grad and id(p) in trained)
        return LossModule(own_model, own_task, name).train()(batch)[0]["loss"].sum()

    return {name: partial(loss, name) for name in task.objectives(model)}
