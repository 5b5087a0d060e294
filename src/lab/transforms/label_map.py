"""Compute label maps from labels of whole images."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.transforms.fields import Batch, field_of
from samebits.schema import Share


class LabelMap:
    """Replace the labels `target`, (B,), by label maps, (B, H, W) int64: 1 + label at pixels that are brighter than
    `threshold` in the first channel of `field`, (B, C, H, W), otherwise 0 (background).

    It does nothing if the batch has no labels, e.g. in predictions for new images.
    """

    def __init__(self, field: str, target: str, threshold: Share) -> None:
        self.field, self.target, self.threshold = field, target, threshold

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with label maps. Raise ConfigError if it lacks the images."""
        if self.target not in batch:
            return batch
        shown = field_of(batch, self.field, "LabelMap.field")[:, 0] > self.threshold
        return {**batch, self.target: torch.where(shown, 1 + batch[self.target].long()[:, None, None], 0)}
