"""Knowledge distillation (Hinton et al. 2015): a student learns the class probabilities of a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lab.losses.cross_entropy import CrossEntropy
from lab.tasks.base import Batch, Losses, Metric, Task
from samebits.schema import Positive, Share


class Distillation(Task):
    """loss = (1 - share) * cross_entropy + share * temperature^2 * KL(teacher || student), both at the temperature.

    teacher: path of a run (its best weights are used) or of a checkpoint. Its model must have the same number of
    classes. It is read when a new run starts, and a copy is saved in the run directory.
    """

    loss_names = ("cross_entropy", "distance")

    def __init__(self, teacher: str, temperature: Positive, share: Share, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self.temperature, self.share, self.metrics = temperature, share, metrics
        self.criterion, self.frozen_networks = CrossEntropy(0.0), {"teacher": teacher}

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss, and its parts: cross_entropy and distance, the scaled KL divergence."""
        output = self.predict(model, batch)
        with torch.no_grad():
            wanted = (self.frozen_networks["teacher"](batch["x"]).float() / self.temperature).log_softmax(1)
        student = (output.float() / self.temperature).log_softmax(1)
        distance = self.temperature**2 * F.kl_div(student, wanted, log_target=True, reduction="none").sum(1)
        cross_entropy = self.criterion(output, batch)
        loss = (1 - self.share) * cross_entropy + self.share * distance
        return {"loss": loss, "cross_entropy": cross_entropy, "distance": distance}, output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the student's logits, (B, C)."""
        return model(batch["x"])
