"""Pixelwise cross-entropy, the loss of semantic segmentation."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from lab.losses.cross_entropy import NO_LABEL
from samebits.errors import ConfigError


class PixelCrossEntropy:
    """(output, batch) -> (B,): losses in nats per pixel, the mean over each sample's labeled pixels.

    output: (B, C, ...) logits. batch["y"]: (B, ...) integer labels below C. ignore_index: label of pixels that do not
    count; None: all pixels count.
    """

    def __init__(self, ignore_index: int | None) -> None:
        self.ignored = NO_LABEL if ignore_index is None else ignore_index

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the losses, (B,). Raise ConfigError if shapes, dtypes or labels do not fit."""
        label = batch["y"]
        if output.dim() < 3 or label.is_floating_point() or label.shape != output[:, 0].shape:
            raise ConfigError(
                f"PixelCrossEntropy cannot compare logits of shape {tuple(output.shape)} with batch['y'] of "
                f"{label.dtype} and shape {tuple(label.shape)}: expected logits (B, C, H, W), as from model=unet, and "
                "integer labels (B, H, W)"
            )
        label = label.long().flatten(1)
        logits = output.float().flatten(2).transpose(1, 2)  # (B, H * W, C)
        try:
            # pixels as rows, because cross_entropy of (B, C, H, W) is not deterministic on CUDA
            losses = F.cross_entropy(
                logits.flatten(0, 1), label.flatten(), reduction="none", ignore_index=self.ignored
            ).view(label.shape)
        except IndexError as error:  # only on a CPU; CUDA aborts
            raise ConfigError(
                f"batch['y'] has labels from {int(label.min())} to {int(label.max())}, but the model has "
                f"{output.shape[1]} classes, 0 to {output.shape[1] - 1}: set data.num_outputs, or "
                "task.criterion.ignore_index to the label of unlabeled pixels"
            ) from error
        return losses.sum(1) / (label != self.ignored).sum(1).clamp(min=1)
