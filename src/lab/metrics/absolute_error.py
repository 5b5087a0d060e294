"""Mean absolute error."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lab.losses.squared_error import differences


class AbsoluteError:
    """(output, batch) -> (B,): mean absolute error over the elements of each sample, in float32 or wider.

    batch["y"]: has the shape of output, or any shape with N elements per sample if output is (B, N).
    """

    higher_is_better = False

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the errors, (B,). Raise ConfigError if the shapes differ."""
        return differences("AbsoluteError", output, batch["y"]).abs().mean(1)
