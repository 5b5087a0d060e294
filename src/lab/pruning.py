"""Magnitude pruning (Zhu and Gupta 2017) of any task's model: its smallest weights are set to zero while it trains.

`pruned` extends a task, so that masks are part of its state and `project` applies them to the model and to the weight
average. `Pruner` is a callback, which extends the masks between steps: a task's `project` does not get the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.callbacks.base import Callback
from lab.groups import PruningConfig
from lab.layers import layers_of
from lab.tasks.base import Task, overrides
from samebits.errors import ConfigError

HOOKS = ("on_step_end", "project", "train_step")  # methods of a task that may draw random numbers


class Pruned(Task):
    """What `pruned` adds to the class of a task."""

    pruning: PruningConfig
    pruning_masks: nn.Module  # its buffers are the masks: False where a weight is zero

    def setup(self, model: nn.Module) -> None:
        """Make a mask for each pruned weight, after the task has frozen parts of the model."""
        super().setup(model)
        layers = layers_of(model, "pruning", self.pruning.exclude)
        self.pruning_masks = nn.Module()
        for name, p in model.named_parameters():  # each tied weight once
            if p.requires_grad and any(p is layer.weight for layer in layers.values()):
                self.pruning_masks.register_buffer(name.replace(".", "/"), torch.ones(p.shape, dtype=torch.bool))
        if not list(self.pruning_masks.buffers()):
            raise ConfigError("pruning: all linear and convolutional layers are frozen - set pruning.sparsity=null")

    def project(self, model: nn.Module) -> None:
        """Set the pruned weights to zero."""
        super().project(model)
        for p, mask in self.pruned_weights(model):
            p.mul_(mask)

    def pruned_weights(self, model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
        """Return (weight, mask) of all pruned weights of the model or of its average."""
        masks = self.pruning_masks.named_buffers()
        return [(model.get_parameter(name.replace("/", ".")), mask) for name, mask in masks]


def pruned(task: Task, pruning: PruningConfig) -> Task:
    """Extend the class of this object by `Pruned`, and return it. The names of both classes are equal, for messages."""
    kind = type(task)
    draws = any(overrides(kind, name) for name in HOOKS) and vars(kind).get("uses_rng") is not False
    task.__class__ = type(kind.__name__, (Pruned, kind), {} if draws else {"uses_rng": False})
    assert isinstance(task, Pruned)
    task.pruning = pruning
    return task


class Pruner(Callback):
    """Extend the masks before every `pruning.every`-th step, and log train/sparsity, the fraction of zeros.

    A pruned weight stays zero. Scores of denser models do not count as best, since the best model must be as sparse as
    the last one.
    """

    def __init__(self, pruning: PruningConfig) -> None:
        self.pruning = pruning

    @torch.no_grad()
    def before_step(self, state: Any) -> None:
        """Prune if it is due."""
        share = sparsity_at(self.pruning, state.step, self.run.total_steps)
        if share is None or not extend([*state.task.pruned_weights(state.model)], share, self.pruning.scope == "model"):
            return
        for model in (state.model, state.ema):
            for p, mask in state.task.pruned_weights(model) if model is not None else ():
                p.mul_(mask)
        state.best, state.best_score, state.evals_without_improvement = [], None, 0

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Add the sparsity of the model's pruned weights."""
        weights = [p for p, _ in state.task.pruned_weights(state.model)]
        zeros = torch.stack([(p == 0).sum() for p in weights]).sum()
        values["train/sparsity"] = zeros.item() / sum(p.numel() for p in weights)


def sparsity_at(pruning: PruningConfig, step: int, total_steps: int) -> float | None:
    """Return the sparsity before this step: s * (1 - (1 - t)^3), where t goes from 0 at `start` to 1 at `end`. None:
    the masks do not change before this step."""
    assert pruning.sparsity is not None
    last = min(round(pruning.end * total_steps), total_steps - 1)  # before the last step, if `end` is 1
    first = min(round(pruning.start * total_steps), last)
    every = pruning.every or max(1, (last - first) // 20)  # one large change would destroy the model
    if not first <= step <= last or ((step - first) % every and step != last):
        return None
    return pruning.sparsity * (1 - (1 - (step - first) / (last - first)) ** 3 if step < last else 1.0)


def extend(masked: list[tuple[nn.Parameter, Tensor]], share: float, together: bool) -> bool:
    """Set masks to False for the smallest weights, until they are this share of each layer, or of all layers
    `together`. Return whether more weights are pruned than before, which is equal on all ranks."""
    groups = [masked] if together else [[layer] for layer in masked]
    grown = False
    for group in groups:
        kept = torch.cat([mask.flatten() for _, mask in group])
        sizes = torch.cat([p.abs().float().flatten() for p, _ in group]).where(kept, -1.0)  # the pruned come first
        count = round(share * len(kept))
        if count <= len(kept) - int(kept.sum()):
            continue
        grown = True
        kept[sizes.argsort(stable=True)[:count]] = False  # stable: weights of equal size in their order
        for (_, mask), part in zip(group, kept.split([mask.numel() for _, mask in group])):
            mask.copy_(part.view_as(mask))
    return grown
