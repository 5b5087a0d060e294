"""FixMatch (Sohn et al. 2020): few labels and many samples without.

What the model says of a weakly changed sample, where it is sure, is the label of the same sample strongly changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Metric, Task
from samebits.errors import ConfigError
from samebits.schema import NotNegative, NotNegativeInt, Positive, Share


class FixMatch(Task):
    """model: (B, *) -> (B, C) logits. Batches of data=mixed: x, y, `set`, and in training `strong`, x's other view.

    labelled: the number of the part that has labels. ratio: samples without labels for one with, as in data.weights.
    threshold: of the probability of a label that is guessed. factor: of the loss without labels. Terms, each a mean
    over the samples that it is of: `supervised`, `guessed`, and `sure`, the share above the threshold.
    """

    loss_names = ("supervised", "guessed", "sure")

    def __init__(
        self,
        labelled: NotNegativeInt,
        ratio: Positive,
        threshold: Share,
        factor: NotNegative,
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        self.labelled, self.ratio, self.threshold, self.factor = labelled, ratio, threshold, factor
        self.metrics = metrics

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        if "set" not in batch or (self.training and "strong" not in batch):
            raise ConfigError(
                f"task=fixmatch: the batch has {sorted(batch)}; it wants `set` and `strong` - use data=mixed and a "
                "lab.transforms.views.View, as conf/experiment/fixmatch.yaml"
            )
        labels = batch["y"].long() if batch["y"].ndim == 1 else batch["y"].long()[:, 0]
        if not self.training:
            output = model(batch["x"])
            loss = F.cross_entropy(output.float(), labels, reduction="none")
            sure = (output.float().softmax(1).amax(1) > self.threshold).float()
            return {"loss": loss, "supervised": loss, "guessed": torch.zeros_like(loss), "sure": sure}, output
        known = batch["set"] == self.labelled
        shape = (-1, *[1] * (batch["x"].ndim - 1))
        # of a labelled sample, which has no strong view, the weak one again: BatchNorm sees no made-up sample
        strong = torch.where(known.view(shape), batch["x"], batch["strong"])
        output, of_strong = model(torch.cat([batch["x"], strong])).chunk(2)
        certainty, guess = output.detach().float().softmax(1).max(1)
        sure = (certainty > self.threshold).float()
        told = F.cross_entropy(output.float(), torch.where(known, labels, guess), reduction="none")
        taught = F.cross_entropy(of_strong.float(), guess, reduction="none")
        # the loop's mean is over all samples: these make it a mean over those with labels, or without
        with_label, without = known * (1 + self.ratio), ~known * (1 + 1 / self.ratio)
        supervised, guessed = with_label * told, without * sure * taught
        loss = supervised + self.factor * guessed
        return {"loss": loss, "supervised": supervised, "guessed": guessed, "sure": without * sure}, output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])
