"""Top-1 accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from samebits.errors import ConfigError


class Accuracy:
    """(output, batch) -> (B,) float32: 1 if the label has the largest logit, otherwise 0.

    output: (B, C). batch["y"]: (B,) or (B, 1) integer labels, or (B, C) probabilities; their largest one is the label.
    """

    higher_is_better = True

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return 1 or 0 for each sample, (B,). Raise ConfigError if the shapes or dtypes do not fit."""
        target = batch["y"]
        if target.is_floating_point() and target.shape == output.shape:
            target = target.argmax(-1)
        elif target.dim() == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if output.dim() != 2 or output.shape[1] < 2 or target.is_floating_point() or target.shape != output.shape[:1]:
            raise ConfigError(
                f"Accuracy cannot compare logits of shape {tuple(output.shape)} with batch['y'] of {batch['y'].dtype} "
                f"{tuple(batch['y'].shape)}: give a logit per class and one integer label, or task=regression"
            )
        return (output.argmax(1) == target.long()).float()  # torch cannot compare uint16
