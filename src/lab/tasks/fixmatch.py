"""FixMatch (Sohn et al. 2020): semi-supervised classification with few labels.

If the model's prediction for a weakly augmented sample is confident, it becomes the label (pseudo-label) of the
strongly augmented version of the same sample.
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
    """model: (B, *) -> (B, C) logits. Use it with data=mixed: the batch has x, y, `set`, and in training `strong`, the
    strongly augmented x.

    labelled: index of the part of data=mixed that has labels. ratio: unlabeled samples per labeled sample, as in
    data.weights. threshold: smallest probability for a pseudo-label. factor: weight of the unlabeled loss. Logged:
    `supervised`, the mean loss of labeled samples; `guessed`, the mean loss of unlabeled samples; `sure`, the fraction
    of unlabeled samples above the threshold.
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
        """Return the loss and its parts. In evaluations it is the cross-entropy of x with y."""
        if "set" not in batch or (self.training and "strong" not in batch):
            raise ConfigError(
                f"task=fixmatch: the batch has {sorted(batch)}, but `set` and `strong` are required - use data=mixed "
                "and lab.transforms.views.View as in conf/experiment/fixmatch.yaml"
            )
        labels = batch["y"].long() if batch["y"].ndim == 1 else batch["y"].long()[:, 0]
        if not self.training:
            output = model(batch["x"])
            loss = F.cross_entropy(output.float(), labels, reduction="none")
            sure = (output.float().softmax(1).amax(1) > self.threshold).float()
            return {"loss": loss, "supervised": loss, "guessed": torch.zeros_like(loss), "sure": sure}, output
        known = batch["set"] == self.labelled
        shape = (-1, *[1] * (batch["x"].ndim - 1))
        # labeled samples have no strong view: use the weak one again, to give BatchNorm real samples
        strong = torch.where(known.view(shape), batch["x"], batch["strong"])
        output, of_strong = model(torch.cat([batch["x"], strong])).chunk(2)
        certainty, guess = output.detach().float().softmax(1).max(1)
        sure = (certainty > self.threshold).float()
        told = F.cross_entropy(output.float(), torch.where(known, labels, guess), reduction="none")
        taught = F.cross_entropy(of_strong.float(), guess, reduction="none")
        # the loop divides by the number of all samples: these factors turn that into the mean over (un)labeled samples
        with_label, without = known * (1 + self.ratio), ~known * (1 + 1 / self.ratio)
        supervised, guessed = with_label * told, without * sure * taught
        loss = supervised + self.factor * guessed
        return {"loss": loss, "supervised": supervised, "guessed": guessed, "sure": without * sure}, output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the logits, (B, C)."""
        return model(batch["x"])
