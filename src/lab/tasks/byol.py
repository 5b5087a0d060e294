"""BYOL (Grill et al. 2020): from one view, the model predicts the output of its EMA, the teacher, for another view."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Metric, Task
from lab.transforms.fields import Transform
from lab.transforms.views import Views
from samebits.schema import Share


class BYOL(Task):
    """model: view -> (B, D) representation. Metrics are called with the representation of the first view.

    projector: (B, D) -> (B, E). predictor: (B, E) -> (B, E). The teacher is the EMA of model and projector, with
    `decay` per step (in the paper it rises to 1 along a cosine). In training the teacher is in training mode; its
    BatchNorms have their own running statistics. fields: the batch fields of the two views; both may be the same field.
    augment: transforms that are applied to both views, with independent random numbers.
    """

    needs_sample_ids = True
    uses_rng = False  # no random numbers outside of the losses

    def __init__(
        self,
        projector: nn.Module,
        predictor: nn.Module,
        decay: Share,
        fields: Sequence[str],
        augment: Mapping[str, Transform],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        self.projector, self.predictor, self.decay = projector, predictor, decay
        self.view, self.metrics = Views(fields, augment), metrics

    def setup(self, model: nn.Module) -> None:
        """Build the teacher as a copy of model and projector."""
        self.teacher = copy.deepcopy(nn.Sequential(model, self.projector)).requires_grad_(False)

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the representation of the first field, without augmentation, (B, D)."""
        return model(batch[self.view.fields[0]])

    def on_step_end(self, model: nn.Module) -> None:
        """Update the teacher's EMA."""
        student = nn.Sequential(model, self.projector)
        torch._foreach_lerp_(list(self.teacher.parameters()), list(student.parameters()), 1 - self.decay)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Return the distances between predictions and the teacher's representations, (B,), from 0 to 8."""
        views = [self.view(batch, 0), self.view(batch, 1)]
        representations = [model(view) for view in views]
        predictions = [self.predictor(self.projector(representation)) for representation in representations]
        with torch.no_grad():
            targets = [self.teacher(view) for view in views]
        pairs = zip(predictions, reversed(targets))  # predict the teacher's representation of the other view
        distances = [2 - 2 * F.cosine_similarity(prediction.float(), target.float()) for prediction, target in pairs]
        return distances[0] + distances[1], representations[0]
