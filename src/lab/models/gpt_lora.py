"""LoRA (Hu et al. 2022): add trained low-rank matrices to linear layers of a frozen model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samebits.checkpoints import format_keys
from samebits.errors import ConfigError
from samebits.schema import Count, Positive, regex


class Adapted(nn.Linear):
    """A linear layer with the weight W + scale * up @ down. W keeps its name; the added term is 0 at the start."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = linear.in_features, linear.out_features, scale
        self.weight, self.bias = linear.weight, linear.bias
        self.down = nn.Parameter(torch.empty(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.down), self.up)


def with_adapters(model: nn.Module, layers: Sequence[str], rank: Count, alpha: Positive) -> nn.Module:
    """Freeze the model, add trained adapters to linear layers, and return it. Weights keep their names, so that the
    weights of a run without adapters can be loaded.

    layers: regular expressions (re.search) for the names of the layers. rank, alpha: the scale of an adapter is alpha /
    rank. Raise ConfigError if an expression matches no layer.
    """
    patterns = [regex(pattern, "model.layers") for pattern in layers]
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    for pattern in patterns:
        if not any(map(pattern.search, linear)):
            raise ConfigError(
                f"model.layers: no layer's name contains {pattern.pattern!r}; names are {format_keys([*linear])}"
            )
    model.requires_grad_(False)
    for name, layer in linear.items():
        if any(pattern.search(name) for pattern in patterns):
            model.set_submodule(name, Adapted(layer, rank, alpha / rank))
    return model
