"""Mean squared error, the loss of regression."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from samebits.errors import ConfigError


class SquaredError:
    """(output, batch) -> (B,): mean squared error over the elements of each sample, in float32 or wider.

    batch["y"]: floats or integers; has the shape of output, or any shape with N elements per sample if output is (B,
    N).
    """

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the errors, (B,). Raise ConfigError if the shapes differ."""
        return differences("SquaredError", output, batch["y"]).square().mean(1)


def differences(whose: str, output: Tensor, target: Tensor) -> Tensor:
    """Return output - target, (B, N), in float32 or wider: squares of half precision overflow or vanish.

    whose: name of the loss or metric, for the message. Raise ConfigError if the shapes differ."""
    flat = output.dim() == 2 and output.shape[0] == target.shape[0] and output.numel() == target.numel()
    if target.shape != output.shape and not flat:  # never broadcast: (B, 1) - (B,) would be (B, B)
        integers = ", or choose task=classification, because they are integers" * (not target.is_floating_point())
        raise ConfigError(
            f"{whose} cannot compare predictions of shape {tuple(output.shape)} with batch['y'] of shape "
            f"{tuple(target.shape)}: set model.num_outputs to the number of elements of one target{integers}"
        )
    wide = output.float() if output.element_size() < 4 else output
    return wide.reshape(len(target), -1) - target.reshape(len(target), -1)
