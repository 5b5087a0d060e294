"""Cross-entropy with class labels or class probabilities."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.schema import Share

FLOATS = (
    "floating-point targets: choose task=regression; or, if they are class numbers, write the column as integers "
    "(pandas: astype('int64'); an HDF5 file can stay as it is with data.fields.y=NAME@classes)"
)
# torch's default is -100: a sample with this label would count in the mean with a loss of 0
NO_LABEL = -(2**40)


class CrossEntropy:
    """(output, batch) -> (B,): losses in nats, unreduced, in float32 or wider.

    output: (B, C) logits. batch["y"]: (B,) or (B, 1) integer labels below C, or (B, C) floating-point probabilities.
    label_smoothing: fraction of the target, in [0, 1], that is distributed evenly over all classes (Szegedy et al.
    2016).
    """

    def __init__(self, label_smoothing: Share) -> None:
        self.label_smoothing = label_smoothing

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the losses, (B,). Raise ConfigError if shapes, dtypes or labels do not fit."""
        target = batch["y"]
        if target.is_floating_point():
            if target.shape != output.shape or output.shape[1:] in ((), (1,)):  # a loss of one class is 0
                raise ConfigError(_mismatch(output, target, FLOATS))
        else:
            if target.dim() == 2 and target.shape[1] == 1:
                target = target.squeeze(1)
            if output.dim() != 2 or target.shape != output.shape[:1]:
                raise ConfigError(_mismatch(output, target, "expected one integer label per sample"))
            target = target.long()  # F.cross_entropy requires int64 labels
        if output.element_size() < 4:  # half precision is too coarse for the exponentials
            output = output.float()
        try:
            return F.cross_entropy(
                output, target, reduction="none", label_smoothing=self.label_smoothing, ignore_index=NO_LABEL
            )
        except IndexError as error:  # only on a CPU; CUDA aborts, so h5rows.probe checks labels before
            raise ConfigError(
                f"batch['y'] has the label {int(target.max() if target.min() >= 0 else target.min())}, but the model "
                f"has {output.shape[1]} classes, 0 to {output.shape[1] - 1}: correct the labels, or set "
                "data.num_outputs"
            ) from error


def _mismatch(output: Tensor, target: Tensor, remedy: str) -> str:
    return (
        f"CrossEntropy cannot compare logits of shape {tuple(output.shape)} with batch['y'] of {target.dtype} and "
        f"shape {tuple(target.shape)}: {remedy}, or (B, C) probabilities with C = model.num_outputs"
    )
