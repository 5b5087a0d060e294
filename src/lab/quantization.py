"""Quantization-aware training (Jacob et al. 2018): layers compute with weights and inputs rounded to integers.

The rounding is simulated in floating point, and its gradient is that of the identity (straight-through estimator). The
weights keep their names and their full precision, so that a run can start from the weights of an ordinary run. Nothing
is stored in addition: scales are computed from the tensor that is rounded, and a sample's output does not depend on the
other samples. Ranks, micro-batches and the size of evaluation batches change results only by floating-point rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.groups import QuantizationConfig
from lab.layers import KINDS, layers_of
from samebits.errors import ConfigError


def fake_quantize(x: Tensor, bits: int, kept: tuple[int, ...]) -> Tensor:
    """Round x to the 2**bits - 1 values scale * (-n, ..., n). There is a scale for each index of the dimensions `kept`;
    the largest absolute value is n * scale."""
    limit = 2 ** (bits - 1) - 1
    values = x.float()
    others = [dim for dim in range(x.dim()) if dim not in kept]
    scale = values.detach().abs().amax(others, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny * limit) / limit
    scaled = values / scale
    return ((scaled + (scaled.round() - scaled).detach()) * scale).to(x.dtype)


class Quantized(nn.Module):
    """What `quantize` adds to the class of a layer."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    weight_bits: int
    activation_bits: int | None

    def rounded_weight(self) -> Tensor:
        """Return the weight with which the layer computes: one scale for each output channel."""
        return fake_quantize(self.weight, self.weight_bits, (0,))

    def rounded_input(self, x: Tensor) -> Tensor:
        """Return the rounded input of the layer: one scale for each row of a linear layer, or each image."""
        if self.activation_bits is None:
            return x
        kept = range(x.dim() - 1) if isinstance(self, nn.Linear) else range(x.dim() - self.weight.dim() + 1)
        return fake_quantize(x, self.activation_bits, tuple(kept))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, from its rounded input and weight."""
        if isinstance(self, nn.Linear):
            return F.linear(self.rounded_input(x), self.rounded_weight(), self.bias)
        convolution: Any = self
        return convolution._conv_forward(self.rounded_input(x), self.rounded_weight(), self.bias)  # type: ignore[no-any-return]


QUANTIZED = {kind: type(f"Quantized{kind.__name__}", (Quantized, kind), {}) for kind in KINDS}


def quantize(model: nn.Module, quantization: QuantizationConfig) -> nn.Module:
    """Make the model's linear and convolutional layers compute with rounded weights and inputs, in place; return it.

    Raise ConfigError if the class of a layer is not torch's own, because it may compute something else."""
    assert quantization.weight_bits is not None
    layers = layers_of(model, "quantization", quantization.exclude)
    for name, layer in layers.items():
        if type(layer) not in QUANTIZED:
            raise ConfigError(
                f"quantization: {name} is a {type(layer).__name__}, which has its own forward - exclude it: "
                f"'quantization.exclude=[\"^{name}$\"]'"
            )
    bits = [quantization.weight_bits, quantization.activation_bits]
    return quantize_layers(model, dict.fromkeys(layers, bits))


def quantize_layers(model: nn.Module, bits: Mapping[str, Sequence[int | None]]) -> nn.Module:
    """Quantize these layers of the model, in place; return it. bits: as from `quantized_layers`."""
    for name, (weight_bits, activation_bits) in bits.items():
        layer: Any = model.get_submodule(name)
        layer.__class__ = QUANTIZED.get(type(layer), type(layer))
        layer.weight_bits, layer.activation_bits = weight_bits, activation_bits
    for part in model.modules():
        if bits and isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # otherwise torch's fused evaluation reads the weights without rounding
    return model


def quantized_layers(model: nn.Module) -> dict[str, list[int | None]]:
    """Return {name: [weight_bits, activation_bits]} of the quantized layers of a model."""
    found = {name: part for name, part in model.named_modules() if isinstance(part, Quantized)}
    return {name: [part.weight_bits, part.activation_bits] for name, part in found.items()}


@torch.no_grad()
def round_weights(model: nn.Module) -> nn.Module:
    """Replace the weights of quantized layers by the rounded ones, as floating-point numbers; return the model."""
    for part in model.modules():
        if isinstance(part, Quantized):
            part.weight.copy_(part.rounded_weight())
    return model
