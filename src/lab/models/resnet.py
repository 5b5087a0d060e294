"""A small residual network (ResNet, He et al. 2016) for images of any size.

    stem   3x3 convolutions; each halves an image larger than 64, so the first stage gets 224x224 as 56x56
    stage  residual blocks; the first of every later stage halves the image and doubles the channels
    head   mean over the image, dropout, linear

Small images keep their resolution in the first stage (8x8 digits: 8, 4, 2). No side becomes smaller than 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from lab.input_shapes import wrong_input
from samebits.errors import ConfigError
from samebits.schema import Count, Share

LARGEST_FIRST_STAGE = 64  # pixels of the shorter side


def conv_norm(channels_in: int, channels_out: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution with padding, and a BatchNorm."""
    # no bias, because the BatchNorm subtracts the mean
    conv = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv, nn.BatchNorm2d(channels_out)


class Block(nn.Module):
    """x: (B, channels_in, H, W) -> (B, channels_out, ceil(H / stride), ceil(W / stride))."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        conv, norm = conv_norm(channels_out, channels_out, 3)
        nn.init.zeros_(norm.weight)  # the block starts as its shortcut (zero-init residual, Goyal et al. 2017)
        self.residual = nn.Sequential(*conv_norm(channels_in, channels_out, 3, stride), nn.ReLU(), conv, norm)
        shortcut: list[nn.Module] = []
        if stride > 1:  # pool, because a 1x1 convolution with stride 2 would discard three of four pixels
            shortcut.append(nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False))
        if channels_in != channels_out:
            shortcut += conv_norm(channels_in, channels_out, 1)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.shortcut(x) + self.residual(x))


class ResNet(nn.Module):
    """x: (B, C, H, W), or (B, H, W) if input_shape is (H, W), floating point -> (B, num_outputs).

    width: channels of the first stage. blocks: residual blocks of each stage. dropout: before the last layer. Images
    may have another size than input_shape, but not another number of channels. In training, BatchNorm requires more
    than one value per channel: if images shrink to 1x1, use micro-batches of two or more samples.
    """

    def __init__(
        self,
        input_shape: Sequence[Count],
        num_outputs: Count,
        width: Count,
        blocks: Sequence[Count],
        dropout: Share,
    ) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3) or min(input_shape) < 1:
            raise ConfigError(
                f"model.input_shape={list(input_shape)} is not an image shape for ResNet, (C, H, W) or (H, W) - "
                "choose model=mlp or another field as x"
            )
        if len(input_shape) == 3 and input_shape[2] in (1, 3, 4) and min(input_shape[:2]) > 4:
            height, width, channels = input_shape
            raise ConfigError(
                f"model.input_shape={list(input_shape)} looks like (H, W, C), but ResNet requires (C, H, W): add "
                "'data/transforms=[channels_first,to_float]' "
                f"data.input_shape=[{channels},{height},{width}] (in a yaml before the other transforms); if it is "
                f"(C, H, W), set model.input_shape=[{height},{width},{width}], of which only the channels are used"
            )
        if not blocks:
            raise ConfigError(f"model.blocks={list(blocks)}: must be >= 1 for each stage, such as [1, 1, 1]")
        self.has_channels = len(input_shape) == 3
        self.channels = int(input_shape[0]) if self.has_channels else 1

        strides, side = [], min(input_shape[-2:])
        while side > LARGEST_FIRST_STAGE:
            strides.append(2)
            side = (side + 1) // 2
        stem: list[nn.Module] = []
        for layer, stride in enumerate(strides or [1]):
            stem += [*conv_norm(width if layer else self.channels, width, 3, stride), nn.ReLU()]
        self.stem = nn.Sequential(*stem)

        stages: list[nn.Module] = []
        channels = width
        for stage, num_blocks in enumerate(blocks):
            for block in range(num_blocks):
                first = stage > 0 and block == 0
                stages.append(Block(channels, width * 2**stage, stride=2 if first else 1))
                channels = width * 2**stage
        self.stages = nn.Sequential(*stages)

        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.head = nn.Linear(channels, num_outputs)
        nn.init.normal_(self.head.weight, std=0.01)  # logits start near 0, so the first predictions are uniform
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Raise ConfigError if the shape does not fit."""
        if not self.has_channels and x.dim() == 3:
            x = x.unsqueeze(1)
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise wrong_input(self, f"images of {self.channels} channels but got {tuple(x.shape[1:])}", x)
        # mean, because the backward of AdaptiveAvgPool2d is not deterministic on CUDA
        return self.head(self.dropout(self.stages(self.stem(x)).mean((2, 3))))
