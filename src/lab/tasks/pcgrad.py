"""Gradient surgery (PCGrad, Yu et al. 2020): train on several losses, without conflicts between their gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.checks import call_with_hints, check_criterion
from lab.tasks.base import Batch, Losses, Metric, OptimizerStep, Task
from samebits.errors import ConfigError
from samebits.shards import global_dot, local_parts


class PCGrad(Task):
    """criteria: {name: criterion}, where criterion(output, batch) -> (B,). The loss is their sum; each is logged under
    its name.

    Two gradients are in conflict if their dot product is negative. The gradient of a criterion is projected onto the
    normal plane of every gradient that it conflicts with, in random order. The update uses the sum of the projected
    gradients. "conflicts" is logged: the fraction of pairs in conflict. Each step costs one forward and backward pass
    per criterion.
    """

    def __init__(self, criteria: Mapping[str, Callable[[Any, Batch], Any]], metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        if len(criteria) < 2 or {"loss", "conflicts"} & set(criteria):
            raise ConfigError(
                f"task.criteria: {list(criteria)}: give two or more, with names other than 'loss' and 'conflicts'"
            )
        for criterion in criteria.values():
            check_criterion(criterion)
        self.criteria, self.metrics, self.loss_names = criteria, metrics, tuple(criteria)
        self.modules_of = nn.ModuleDict({name: each for name, each in criteria.items() if isinstance(each, nn.Module)})

    @classmethod
    def loss_names_for(cls, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the criteria."""
        return tuple(arguments["criteria"])

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the sum of the criteria as the loss, and each criterion, (B,)."""
        output = self.predict(model, batch)
        terms = {
            name: call_with_hints(criterion, f"task.criteria.{name}", output, batch)
            for name, criterion in self.criteria.items()
        }
        return {"loss": torch.stack([*terms.values()]).sum(0), **terms}, output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the model's output."""
        return model(batch["x"])

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Compute the gradients of each criterion, and update with the sum of the projected ones."""
        micro_batches, trained = list(batches), optimizer_step.parameters("")
        values: dict[str, Tensor] = {}
        gradients = []
        for name in self.loss_names:
            values = optimizer_step.gradients("", micro_batches, name)
            gradients.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
        with torch.no_grad():
            combined, conflicts = without_conflicts(gradients, step)
            for p, gradient in zip(trained, combined):
                p.grad = gradient
        optimizer_step.update("")
        return values | {"conflicts": conflicts}


def without_conflicts(gradients: Sequence[list[Tensor]], step: int) -> tuple[list[Tensor], Tensor]:
    """Return (the sum of the projected gradients, the fraction of pairs in conflict). gradients: for each loss, the
    gradients of all parameters. step: seed of the random order."""
    count, order = len(gradients), random.Random(step)  # equal on all ranks, and in a resumed run
    squares = [global_dot(gradient, gradient).clamp_min(1e-30) for gradient in gradients]
    total = [torch.zeros_like(part) for part in gradients[0]]
    conflicts = squares[0].new_zeros(())
    for i, gradient in enumerate(gradients):
        projected = [part.clone() for part in gradient]
        for j in order.sample(range(count), count):
            if j != i:
                conflicts += global_dot(gradient, gradients[j]) < 0
                against = global_dot(projected, gradients[j]).clamp_max(0) / squares[j]
                torch._foreach_sub_(local_parts(projected), torch._foreach_mul(local_parts(gradients[j]), against))
        torch._foreach_add_(local_parts(total), local_parts(projected))
    return total, conflicts / (count * (count - 1))


class Grouped(nn.Module):
    """Cross-entropy of the group that contains the label, (output (B, C), batch) -> (B,). The probability of a group is
    the sum over its classes.

    groups: lists of labels; each label from 0 to C - 1 must be in exactly one. Raise ConfigError otherwise.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        super().__init__()
        labels = sorted(label for group in groups for label in group)
        if labels != list(range(len(labels))):
            raise ConfigError(
                f"task.criteria: groups={[*map(list, groups)]}: must contain each label, from 0, exactly once"
            )
        outside, group_of = torch.full((len(labels), len(groups)), -torch.inf), torch.zeros(len(labels)).long()
        for number, group in enumerate(groups):
            outside[list(group), number], group_of[list(group)] = 0.0, number
        self.outside, self.group_of = nn.Buffer(outside, persistent=False), nn.Buffer(group_of, persistent=False)

    def forward(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the cross-entropy of the groups, (B,)."""
        if output.dim() != 2 or output.shape[1] != len(self.group_of):
            raise ConfigError(
                f"task.criteria: groups of {len(self.group_of)} labels, but the model's output is {tuple(output.shape)}"
            )
        logits = (output.float()[:, :, None] + self.outside).logsumexp(1)
        return F.cross_entropy(logits, self.group_of[batch["y"].view(-1).long()], reduction="none")
