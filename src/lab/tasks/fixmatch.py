"""FixMatch (Sohn et al. 2020): semi-supervised classification with few labels.

If the model's prediction for a weakly augmented sample is confident, it becomes the label (pseudo-label) of the
strongly augmented version of the same sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Metric, OptimizerStep, Task
from samebits.errors import ConfigError
from samebits.schema import NotNegative, NotNegativeInt, Share

COUNTS = "FixMatch.counts"  # batch field that train_step adds: (B, 2), what `counts` returns for the global batch


class FixMatch(Task):
    """model: (B, *) -> (B, C) logits. Use it with data=mixed: the batch has x, y, `set`, and in training `strong`, the
    strongly augmented x.

    labelled: index of the part of data=mixed that has labels. threshold: smallest probability for a pseudo-label.
    factor: weight of the unlabeled loss. Logged: `supervised`, the mean loss of the labeled samples of the global
    batch; `guessed`, the mean loss of the unlabeled samples, which is 0 for those without a pseudo-label; `sure`, the
    fraction of unlabeled samples with a pseudo-label.
    """

    loss_names = ("supervised", "guessed", "sure")
    uses_rng = False  # no random numbers outside of the losses

    def __init__(
        self, labelled: NotNegativeInt, threshold: Share, factor: NotNegative, metrics: Mapping[str, Metric]
    ) -> None:
        super().__init__()
        self.labelled, self.threshold, self.factor, self.metrics = labelled, threshold, factor, metrics

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Count the labeled and the unlabeled samples of the global batch, then run a step."""
        micro_batches = list(batches)
        counts = self.run.mean(self.counts(micro_batches))
        return optimizer_step("", [batch | {COUNTS: counts.expand(len(batch["x"]), 2)} for batch in micro_batches])

    def counts(self, batches: Sequence[Batch]) -> Tensor:
        """Return the numbers of labeled and of unlabeled samples, (2,). Raise ConfigError if a field is missing."""
        for batch in batches:
            self.check_fields(batch)
        of = torch.cat([batch["set"] for batch in batches])
        real = torch.cat([batch.get("is_real", torch.ones_like(batch["set"])) for batch in batches])
        labeled = of == self.labelled
        return torch.stack([(labeled * real).sum(), (~labeled * real).sum()]).float()

    def check_fields(self, batch: Batch) -> None:
        """Raise ConfigError if the batch lacks a field."""
        if "set" not in batch or (self.training and "strong" not in batch):
            raise ConfigError(
                f"task=fixmatch: the batch has {sorted(batch)}, but `set` and `strong` are required - use data=mixed "
                "and lab.transforms.views.View as in conf/experiment/fixmatch.yaml"
            )

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss and its parts. In evaluations it is the cross-entropy of x with y."""
        self.check_fields(batch)
        labels = batch["y"].long() if batch["y"].ndim == 1 else batch["y"].long()[:, 0]
        if not self.training:
            output = model(batch["x"])
            loss = F.cross_entropy(output.float(), labels, reduction="none")
            sure = (output.float().softmax(1).amax(1) >= self.threshold).float()
            return {"loss": loss, "supervised": loss, "guessed": torch.zeros_like(loss), "sure": sure}, output
        labeled = batch["set"] == self.labelled
        shape = (-1, *[1] * (batch["x"].ndim - 1))
        # labeled samples have no strong view: use the weak one again, to give BatchNorm real samples
        strong = torch.where(labeled.view(shape), batch["x"], batch["strong"])
        output, of_strong = model(torch.cat([batch["x"], strong])).chunk(2)
        certainty, guess = output.detach().float().softmax(1).max(1)
        sure = (certainty >= self.threshold).float()
        label_loss = F.cross_entropy(output.float(), torch.where(labeled, labels, guess), reduction="none")
        pseudo_loss = F.cross_entropy(of_strong.float(), guess, reduction="none")
        # the loop divides by the number of all samples: these factors turn that into the mean over (un)labeled samples
        counts = batch[COUNTS] if COUNTS in batch else self.counts([batch])[None]
        factors = counts.sum(1, keepdim=True) / counts.clamp(min=1e-6)  # a step may have no sample of a kind
        of_labeled, of_unlabeled = labeled * factors[:, 0], ~labeled * factors[:, 1]
        supervised, guessed = of_labeled * label_loss, of_unlabeled * sure * pseudo_loss
        loss = supervised + self.factor * guessed
        return {"loss": loss, "supervised": supervised, "guessed": guessed, "sure": of_unlabeled * sure}, output

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the logits, (B, C)."""
        return model(batch["x"])
