"""Label maps from labels of whole images."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.transforms.fields import Batch
from samebits.errors import ConfigError
from samebits.schema import Share


class LabelMap:
    """Replaces `target`, (B,) the class of what an image shows, by (B, H, W) int64: 1 + class where the image, `field`,
    (B, C, H, W), is brighter than `threshold` in its first channel, else 0: background. Without labels, as when new
    images are predicted, it does nothing."""

    def __init__(self, field: str, target: str, threshold: Share) -> None:
        self.field, self.target, self.threshold = field, target, threshold

    def __call__(self, batch: Batch, numbers: Tensor) -> Batch:
        if self.target not in batch:
            return batch
        if self.field not in batch:
            raise ConfigError(f"data.transforms: LabelMap.field={self.field!r}; the batch has {sorted(batch)}")
        shown = batch[self.field][:, 0] > self.threshold
        return {**batch, self.target: torch.where(shown, 1 + batch[self.target].long()[:, None, None], 0)}
