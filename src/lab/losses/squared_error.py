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
        if "y" not in batch:
            raise ConfigError(f"the batch has no field 'y', only {sorted(batch)}: add the target to data.fields")
        target = batch["y"]
        flat = output.dim() == 2 and output.shape[0] == target.shape[0] and output.numel() == target.numel()
        if target.shape != output.shape and not flat:  # never broadcast: (B, 1) - (B,) would be (B, B)
            raise ConfigError(
                f"SquaredError cannot compare predictions of shape {tuple(output.shape)} with batch['y'] of shape "
                f"{tuple(target.shape)}: set model.num_outputs to the number of elements of one target"
                + (
                    ", or choose task=classification, because they are integers"
                    if not target.is_floating_point()
                    else ""
                )
            )
        batch_size = len(target)
        if output.element_size() < 4:  # half precision: squares overflow or vanish
            output = output.float()
        return (output.reshape(batch_size, -1) - target.reshape(batch_size, -1)).square().mean(1)
