"""Contrastive learning: which of all second views in the global batch is a first view's own (InfoNCE)."""

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
    """The model represents: a view -> (B, D); metrics get this of the first view. projector: (B, D) -> (B, E).

    Each view is to be told from the other views of all samples of all ranks, in both directions (van den Oord et al.
    2018); the temperature, which begins at `temperature`, is learned, and kept above 0.01, as in CLIP (Radford et al.
    2021). fields: in which the two views lie, one field twice or two; each is changed by augment's transforms, which
    draw other numbers for either. Scores of an evaluation are those of batches of so many samples as all ranks evaluate
    at once.
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
        seen = [model(self.view(batch, which)) for which in (0, 1)]
        local = [F.normalize(self.projector(one).float(), dim=1) for one in seen]
        counts = (batch["sample_id"] >= 0).float()[:, None]  # what only pads an evaluation's batch is nobody's negative
        rows, first = self.gathered(torch.cat([*local, counts], 1))
        one, two, counts = rows.split([local[0].shape[1], local[1].shape[1], 1], 1)
        scale = self.log_scale.exp()
        target = first + torch.arange(len(local[0]), device=rows.device)
        with torch.autocast(rows.device.type, enabled=False):  # bf16 would leave two digits of what may be 100
            pairs = [(local[0], two), (local[1], one)]
            logits = [(scale * mine @ others.T).masked_fill(counts.T == 0, -torch.inf) for mine, others in pairs]
            losses = torch.stack([F.cross_entropy(each, target, reduction="none") for each in logits]).mean(0)
        hits = torch.stack([each.argmax(1) == target for each in logits]).float().mean(0)
        return {"loss": losses, "top1": hits, "temperature": (1 / scale).detach().expand(len(target))}, seen[0]

    def on_step_end(self, model: nn.Module) -> None:
        self.log_scale.clamp_(max=math.log(100))

    def gathered(self, local: Tensor) -> tuple[Tensor, int]:
        return gather_rows(local)
