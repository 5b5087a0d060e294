"""Contrastive learning (InfoNCE, van den Oord et al. 2018): find the second view of a sample among those of all samples
in the global batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Metric, Task
from lab.transforms.fields import Transform
from lab.transforms.views import Views
from samebits.schema import Positive
from samebits.world import gather_rows


class Contrastive(Task):
    """model: view -> (B, D) representation. Metrics are called with the representation of the first view.

    projector: (B, D) -> (B, E). The loss is the cross-entropy of identifying a sample's other view among the views of
    all samples of all ranks, averaged over both directions. The temperature starts at `temperature`, is learned, and
    stays above 0.01, as in CLIP (Radford et al. 2021). fields: the batch fields of the two views; both may be the same
    field. augment: transforms that are applied to both views, with independent random numbers. The scores of an
    evaluation depend on how many samples all ranks evaluate at once.
    """

    loss_names = ("top1", "temperature")
    needs_sample_ids = needs_global_batch = True
    uses_rng = False  # `on_step_end` draws no random numbers
    not_compiled = ("gathered",)

    def __init__(
        self,
        projector: nn.Module,
        temperature: Positive,
        fields: Sequence[str],
        augment: Mapping[str, Transform],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        self.projector = projector
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.view, self.metrics = Views(fields, augment), metrics

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss, "top1" (1 if the other view is found, (B,)) and the temperature."""
        seen = [model(self.view(batch, which)) for which in (0, 1)]
        local = [F.normalize(self.projector(one).float(), dim=1) for one in seen]
        counts = (batch["sample_id"] >= 0).float()[:, None]  # padding in an evaluation is not a negative
        rows, first = self.gathered(torch.cat([*local, counts], 1))
        one, two, counts = rows.split([local[0].shape[1], local[1].shape[1], 1], 1)
        scale = self.log_scale.exp()
        target = first + torch.arange(len(local[0]), device=rows.device)
        with torch.autocast(rows.device.type, enabled=False):  # values up to 100 would have two digits in bf16
            pairs = [(local[0], two), (local[1], one)]
            logits = [(scale * mine @ others.T).masked_fill(counts.T == 0, -torch.inf) for mine, others in pairs]
            losses = torch.stack([F.cross_entropy(each, target, reduction="none") for each in logits]).mean(0)
        hits = torch.stack([each.argmax(1) == target for each in logits]).float().mean(0)
        return {"loss": losses, "top1": hits, "temperature": (1 / scale).detach().expand(len(target))}, seen[0]

    def on_step_end(self, model: nn.Module) -> None:
        """Limit the scale to 100, i.e. the temperature to 0.01."""
        self.log_scale.clamp_(max=math.log(100))

    def gathered(self, local: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, and the index of this rank's first row in them."""
        return gather_rows(local)
