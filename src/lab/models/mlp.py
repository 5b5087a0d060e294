"""A multilayer perceptron (MLP)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from lab.input_shapes import wrong_input
from samebits.schema import Count, Share


class MLP(nn.Sequential):
    """x: (B, *input_shape) floating point -> (B, num_outputs): a linear layer and a ReLU for each width in `hidden`,
    then a linear layer. dropout: after each ReLU."""

    def __init__(
        self, input_shape: Sequence[Count], num_outputs: Count, hidden: Sequence[Count], dropout: Share
    ) -> None:
        shape = tuple(input_shape)
        widths = [math.prod(shape), *hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            linear = nn.Linear(fan_in, fan_out)
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
            if dropout > 0:  # Dropout(0) would cost a call in every step
                layers.append(nn.Dropout(dropout))
        head = nn.Linear(widths[-1], num_outputs)
        nn.init.normal_(head.weight, std=0.01)  # logits start near 0, so the first predictions are uniform
        nn.init.zeros_(head.bias)
        super().__init__(*layers, head)
        self.input_shape, self.num_inputs = shape, widths[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Raise ConfigError if the shape does not fit."""
        if x.shape[1:] != self.input_shape:
            raise wrong_input(self, f"samples of shape {self.input_shape} but got {tuple(x.shape[1:])}", x)
        return super().forward(x if x.dim() == 2 else x.reshape(-1, self.num_inputs))
