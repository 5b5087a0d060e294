"""The error of a model that gets samples of another shape than it was built for."""

from __future__ import annotations

from torch import Tensor, nn

from samebits.errors import ConfigError


def wrong_input(module: nn.Module, needed_and_got: str, x: Tensor) -> ConfigError:
    """Return the error for an x, (B, ...), of a wrong shape. lab.checks adds the key to set, because the module
    does not contain its place in the config.

    needed_and_got: such as "images of 3 channels but got (1, 8, 8)"."""
    error = ConfigError(f"{type(module).__name__} was built for {needed_and_got}")
    vars(error).update(module=module, shape=tuple(x.shape[1:]))
    return error
