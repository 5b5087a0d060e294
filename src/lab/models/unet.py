"""A small U-Net (Ronneberger et al. 2015): predicts a label, or any other values, for each pixel.

    down   two 3x3 convolutions per level; the next level has half the image size and twice the channels
    up     upsample by 2, concatenate the output of the same level of `down`, two 3x3 convolutions
    head   1x1 convolution

It uses GroupNorm with one group in place of BatchNorm, so that results do not depend on ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lab.input_shapes import wrong_input
from samebits.errors import ConfigError
from samebits.schema import Count


def convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        conv = nn.Conv2d(channels, channels_out, 3, padding=1, bias=False)  # no bias, because the norm has one
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.GroupNorm(1, channels_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """x: (B, C, H, W), or (B, H, W) if input_shape is (H, W), floating point -> (B, num_outputs, H, W).

    width: channels of the first level. levels: number of levels. Each side of an image must have 2 ** (levels - 1)
    pixels or more.
    """

    def __init__(self, input_shape: Sequence[Count], num_outputs: Count, width: Count, levels: Count) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < 2 ** (levels - 1):
            raise ConfigError(
                f"model.input_shape={list(input_shape)}: UNet of {levels} levels requires images (C, H, W) or (H, W) "
                f"of {2 ** (levels - 1)} pixels or more on each side - choose another field as x, or fewer model.levels"
            )
        self.channels = int(input_shape[0]) if len(input_shape) == 3 else 1
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(map(convolutions, [self.channels, *widths], widths))
        self.up = nn.ModuleList(convolutions(3 * channels, channels) for channels in widths[:-1])
        # the mean, because the backward of max_pool2d is not deterministic on CUDA; odd sides are rounded up
        self.halve = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
        self.head = nn.Conv2d(width, num_outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Raise ConfigError if the shape does not fit."""
        images, x = x, x.unsqueeze(1) if x.dim() == 3 else x
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise wrong_input(self, f"images of {self.channels} channels but got {tuple(images.shape[1:])}", images)
        skipped: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.halve(x) if level else x)
            skipped.append(x)
        skipped.pop()
        for block in reversed(self.up):
            beside = skipped.pop()
            x = block(torch.cat([beside, doubled(x)[..., : beside.shape[-2], : beside.shape[-1]]], 1))
        return self.head(x)


def doubled(x: Tensor) -> Tensor:
    """Return each pixel four times, (B, C, H, W) -> (B, C, 2 H, 2 W). Unlike interpolate, its gradient is
    deterministic."""
    size, height, width = x.shape[:2], x.shape[2], x.shape[3]
    return x[:, :, :, None, :, None].expand(*size, height, 2, width, 2).reshape(*size, 2 * height, 2 * width)
