"""A network that learns CIFAR-10 in few epochs, after airbench (Jordan 2024, github.com/KellerJordan/cifar10-airbench).

    whiten   2x2 convolution with the principal components of the images' patches, not trained; 31x31
    group    3x3 convolution, max-pool, norm, GELU, 3x3 convolution, norm, GELU; three groups: 15x15, 7x7, 3x3
    head     max over the image, linear, scaled by a constant

The weights of the 3x3 convolutions are stored as matrices (out, in * 9), which optim=muon requires.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.schema import Count, Positive


class MatrixConv(nn.Module):
    """A 3x3 convolution without bias, (B, channels_in, H, W) -> (B, channels_out, H, W)."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.shape = (channels_out, channels_in, 3, 3)
        kernels = torch.empty(self.shape)
        nn.init.kaiming_uniform_(kernels, a=5**0.5)
        nn.init.dirac_(kernels[:channels_in])  # the first outputs equal the inputs at the start
        self.weight = nn.Parameter(kernels.flatten(1))
        self.normalize()

    @torch.no_grad()
    def normalize(self) -> None:
        """Scale the weights to the norm of Muon's updates, so that the learning rate is relative to the weights."""
        self.weight.mul_(len(self.weight) ** 0.5 / self.weight.norm())

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        return F.conv2d(x, self.weight.view(self.shape), padding=1)


def norm(channels: int) -> nn.BatchNorm2d:
    """Return a BatchNorm with a bias but without a scale, which the next layer can represent."""
    made = nn.BatchNorm2d(channels, momentum=0.4)
    made.weight.requires_grad_(False)
    return made


class Group(nn.Module):
    """(B, channels_in, H, W) -> (B, channels_out, H // 2, W // 2); a side of 1 is not halved."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first, self.second = MatrixConv(channels_in, channels_out), MatrixConv(channels_out, channels_out)
        self.norm_first, self.norm_second = norm(channels_out), norm(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the group's output."""
        x = self.first(x)
        x = F.max_pool2d(x, [min(2, side) for side in x.shape[-2:]])
        x = F.gelu(self.norm_first(x))
        return F.gelu(self.norm_second(self.second(x)))


class CifarFast(nn.Module):
    """x: (B, C, H, W), floating point -> (B, num_outputs). widths: channels of the three groups.

    head_scale: factor of the logits. task=whitened calls `whiten` in a new run, which computes the first layer from
    images.
    """

    whiten_weight: Tensor

    def __init__(
        self, input_shape: Sequence[Count], num_outputs: Count, widths: Sequence[Count], head_scale: Positive
    ) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 2:
            raise ConfigError(f"model.input_shape={list(input_shape)}: CifarFast takes images, (C, H, W)")
        if len(widths) != 3:
            raise ConfigError(f"model.widths={list(widths)}: CifarFast has three groups")
        channels = input_shape[0]
        filters = 2 * 4 * channels  # each component of a patch and its negative
        self.register_buffer("whiten_weight", torch.zeros(filters, channels, 2, 2))
        self.whiten_bias = nn.Parameter(torch.zeros(filters))
        before = [filters, *widths[:-1]]
        self.groups = nn.Sequential(*(Group(a, b) for a, b in zip(before, widths, strict=True)))
        self.head, self.head_scale = nn.Linear(widths[-1], num_outputs, bias=False), head_scale

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Compute the first layer so that its outputs are uncorrelated with variance 1. images: (N, C, H, W), after
        data.transforms."""
        patches = F.unfold(images, 2).transpose(1, 2).flatten(0, 1).double()  # (N * places, 4 C)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.to(self.whiten_weight)
        self.whiten_weight.copy_(torch.cat([filters, -filters]).view_as(self.whiten_weight))

    def normalize(self) -> None:
        """Normalize all 3x3 convolutions."""
        for module in self.modules():
            if isinstance(module, MatrixConv):
                module.normalize()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (B, num_outputs)."""
        x = F.gelu(F.conv2d(x, self.whiten_weight, self.whiten_bias))
        return self.head(self.groups(x).flatten(2).max(2).values) * self.head_scale
