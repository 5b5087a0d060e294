"""DINO (Caron et al. 2021): self-supervised training of a student that predicts the outputs of its EMA, the teacher."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Metric, OptimizerStep, Task
from lab.transforms.fields import Transform
from lab.transforms.views import Views
from samebits.schema import Count, Positive, Rule, Share


class Head(nn.Module):
    """(B, num_inputs) -> (B, prototypes): a network maps to `size` values; the output is their cosine with each
    prototype."""

    def __init__(self, num_inputs: Count, hidden: Count, size: Count, prototypes: Count) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(num_inputs, hidden), nn.GELU(), nn.Linear(hidden, size))
        self.prototypes = nn.Parameter(torch.randn(prototypes, size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the cosine of each sample with each prototype, (B, prototypes)."""
        unit = F.normalize(self.network(x).float(), dim=1)
        with torch.autocast(x.device.type, enabled=False):  # bf16 has two digits, too few for a division by 0.04
            return F.linear(unit, F.normalize(self.prototypes.float(), dim=1))


class DINO(Task):
    """model: view -> (B, D) representation. Metrics are called with the representation of the first view.

    views: number of views of batch["x"]. Teacher and student use the first two, transformed by `augment`; only the
    student uses the others, transformed by `local_augment`. The loss is the mean cross-entropy over pairs of different
    views. "entropy" is the entropy of the teacher's output: if it is 0 or log(prototypes), the representation has
    collapsed. momentum: of the teacher's EMA in the first step; it rises to 1 along a cosine.
    """

    loss_names = ("entropy",)
    needs_sample_ids = True
    uses_rng = False  # no random numbers outside of the losses

    def __init__(
        self,
        head: Head,
        momentum: Share,
        temperature: Positive,
        teacher_temperature: Positive,
        center_momentum: Share,
        views: Annotated[int, Rule(at_least=2)],
        augment: Mapping[str, Transform],
        local_augment: Mapping[str, Transform],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        self.head, self.metrics, self.momentum = head, metrics, momentum
        self.temperature, self.teacher_temperature = temperature, teacher_temperature
        self.center_momentum, self.step = center_momentum, 0
        others = views - 2
        self.whole = Views(["x"] * 2, augment, after=others)
        self.local = Views(["x"] * others, local_augment, before=2)
        # center: running mean of the teacher's output. seen, (prototypes + 1,): sum of the outputs in this step on this
        # rank; the last element is their number
        count = len(head.prototypes)
        self.center, self.seen = nn.Buffer(torch.zeros(count)), nn.Buffer(torch.zeros(count + 1), persistent=False)

    def setup(self, model: nn.Module) -> None:
        """Build the teacher as a copy of model and head."""
        self.teacher = copy.deepcopy(nn.Sequential(model, self.head)).requires_grad_(False)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the mean cross-entropy over pairs of views, and the teacher's entropy."""
        views = [make(batch, k) for make in (self.whole, self.local) for k in range(len(make.fields))]
        representations = [model(view) for view in views]
        predictions = [(self.head(x) / self.temperature).log_softmax(1) for x in representations]
        with torch.no_grad():
            logits = [self.teacher(view) for view in views[:2]]
            targets = [((x - self.center) / self.teacher_temperature).softmax(1) for x in logits]
            if self.training:
                real = (batch["sample_id"] >= 0).to(logits[0].dtype)[:, None]  # padding does not move the center
                self.seen.add_(torch.cat([(real * (logits[0] + logits[1])).sum(0), 2 * real.sum(0)]))
        pairs = [-(t * p).sum(1) for i, t in enumerate(targets) for j, p in enumerate(predictions) if i != j]
        entropy = torch.stack([-torch.xlogy(t, t).sum(1) for t in targets]).mean(0)
        return {"loss": torch.stack(pairs).mean(0), "entropy": entropy}, representations[0]

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the representation of batch["x"], (B, D)."""
        return model(batch["x"])

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Reset the sum of the teacher's outputs, then run a step."""
        self.step = step
        self.seen.zero_()
        return optimizer_step("", batches)

    def on_step_end(self, model: nn.Module) -> None:
        """Update the teacher's EMA and the center."""
        progress = self.step / self.run.total_steps
        momentum = 1 - (1 - self.momentum) * (math.cos(math.pi * progress) + 1) / 2
        student = nn.Sequential(model, self.head)
        torch._foreach_lerp_(list(self.teacher.parameters()), list(student.parameters()), 1 - momentum)
        seen = self.run.mean(self.seen)
        self.center.lerp_(seen[:-1] / seen[-1], 1 - self.center_momentum)
