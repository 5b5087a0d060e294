"""Cross-entropy of class labels, hard or soft."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.schema import Share


class CrossEntropy:
    """(output, batch) -> (B,) losses in nats, unreduced, in float32 or wider.

    output: (B, C) logits. batch["y"]: (B,) or (B, 1) integer labels below C, or (B, C) floating-point
    probabilities as from mixup. label_smoothing: share of the target, in [0, 1], spread evenly over all classes.
    """

    def __init__(self, label_smoothing: Share) -> None:
        if not 0 <= label_smoothing <= 1:
            raise ConfigError(f"task.criterion.label_smoothing={label_smoothing}: give a share between 0 and 1")
        self.label_smoothing = label_smoothing

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        if "y" not in batch:
            raise ConfigError(f"the batch has no field 'y' to learn, only {sorted(batch)}: name it in data.fields")
        target = batch["y"]
        if target.is_floating_point():
            if target.shape != output.shape:
                raise ConfigError(_mismatch(output, target, "floating-point targets: choose task=regression"))
        else:
            if target.dim() == 2 and target.shape[1] == 1:
                target = target.squeeze(1)
            if output.dim() != 2 or target.shape != output.shape[:1]:
                raise ConfigError(_mismatch(output, target, "one integer label per sample is needed"))
            target = target.long()  # F.cross_entropy takes int64 labels only
        if output.element_size() < 4:  # half precision: the exponentials need more
            output = output.float()
        try:
            return F.cross_entropy(output, target, reduction="none", label_smoothing=self.label_smoothing)
        except IndexError as error:  # on a CPU; CUDA aborts, so h5rows.probe checks labels first
            raise ConfigError(
                f"batch['y'] has the label {int(target.max() if target.min() >= 0 else target.min())}, but the model "
                f"puts out {output.shape[1]} classes, 0 to {output.shape[1] - 1}: correct the labels, or set "
                "data.num_outputs"
            ) from error


def _mismatch(output: Tensor, target: Tensor, remedy: str) -> str:
    return (
        f"CrossEntropy cannot compare logits of shape {tuple(output.shape)} with batch['y'] of {target.dtype} and "
        f"shape {tuple(target.shape)}: {remedy}, or (B, C) probabilities with C = model.num_outputs"
    )
