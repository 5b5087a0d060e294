"""Contrastive learning after SimCLR (Chen et al. 2020): identify the second view of a sample among the second views of
all samples in the global batch, and vice versa.

SimCLR compares each view with all others, also with the same view of other samples, at a fixed temperature. Here the
loss and the learned temperature are as in CLIP (Radford et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lab.tasks.base import Batch, Metric
from lab.tasks.infonce import InfoNCE
from lab.transforms.fields import Transform
from lab.transforms.views import Views
from samebits.schema import Positive


class Contrastive(InfoNCE):
    """model: view -> (B, D) representation. Metrics are called with the representation of the first view.

    projector: (B, D) -> (B, E), network after the model. fields: the batch fields of the two views; both may be the
    same field. augment: transforms that are applied to both views, with independent random numbers. Loss, temperature
    and micro-batches: see InfoNCE.
    """

    uses_rng = False  # no random numbers outside of the losses

    def __init__(
        self,
        projector: nn.Module,
        temperature: Positive,
        fields: Sequence[str],
        augment: Mapping[str, Transform],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__(temperature)
        self.projector = projector
        self.view, self.metrics = Views(fields, augment), metrics

    def pairs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Any]:
        """Return the projections of both views, and the representation of the first."""
        seen = [model(self.view(batch, which)) for which in (0, 1)]
        return self.projector(seen[0]), self.projector(seen[1]), seen[0]

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the representation of the first field, without augmentation, (B, D)."""
        return model(batch[self.view.fields[0]])
