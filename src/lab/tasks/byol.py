"""BYOL (Grill et al. 2020): a student predicts what its EMA, the teacher, represents of another view of the sample."""

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
    """model: view -> (B, D) representation; metrics get that of the first view.

    projector: (B, D) -> (B, E); predictor: (B, E) -> (B, E). The teacher is the EMA of model and projector, with
    `decay` per step; its BatchNorms keep their own running statistics. fields: the batch's fields of the two views,
    which may be one field twice; augment's transforms change both, with independent random numbers.
    """

    needs_sample_ids = True
    uses_rng = False  # `on_step_end` draws no random numbers

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
        self.teacher = copy.deepcopy(nn.Sequential(model, self.projector)).requires_grad_(False)

    def on_step_end(self, model: nn.Module) -> None:
        student = nn.Sequential(model, self.projector)
        torch._foreach_lerp_(list(self.teacher.parameters()), list(student.parameters()), 1 - self.decay)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        views = [self.view(batch, 0), self.view(batch, 1)]
        seen = [model(view) for view in views]
        guessed = [self.predictor(self.projector(one)) for one in seen]
        with torch.no_grad():
            taught = [self.teacher(view) for view in views]
        distances = [2 - 2 * F.cosine_similarity(g.float(), t.float()) for g, t in zip(guessed, reversed(taught))]
        return distances[0] + distances[1], seen[0]
