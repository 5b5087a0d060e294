"""A vision transformer (ViT, Dosovitskiy et al. 2021), which can encode a part of an image, and a decoder (He et al.
2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lab.input_shapes import wrong_input
from lab.models.gpt import Block
from samebits.errors import ConfigError
from samebits.schema import Count, Share


class ViT(nn.Module):
    """(B, C, H, W) floating point -> (B, num_outputs): a transformer of patches of `patch` x `patch` pixels, whose
    outputs are averaged.

    Positions are fixed (sines and cosines), so weights fit images of any size.
    """

    position: Tensor

    def __init__(
        self, input_shape: Sequence[Count], num_outputs: Count, patch: Count, width: Count, heads: Count, layers: Count,
        dropout: Share,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch, (rows, columns) = patch, grid_of(input_shape, patch)
        check_width("model", width, heads)
        self.input = nn.Linear(input_shape[0] * patch**2, width)
        self.register_buffer("position", positions(rows, columns, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_outputs)
        nn.init.normal_(self.head.weight, std=0.01)  # logits start near 0
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Raise ConfigError if the image has another size."""
        return self.head(self.features(x).mean(1))

    def features(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return a vector for each patch, (B, K, width). kept: (B, K) int64, numbers of the patches that the model
        sees; None: all."""
        shown = patches(x, self.patch)
        count, values = len(self.position), self.input.in_features
        if shown.shape[1:] != (count, values):
            got = f"an image {tuple(x.shape[1:])} has {shown.shape[1]} of {shown.shape[2]}"
            raise wrong_input(self, f"{count} patches of {values} values, but {got}", x)
        places = self.position.expand(len(x), -1, -1)
        if kept is not None:
            shown, places = chosen(shown, kept), chosen(places, kept)
        x = self.input(shown) + places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class PatchDecoder(nn.Module):
    """(B, K, num_inputs) vectors of some patches, (B, K) int64 their numbers -> (B, L, C * patch * patch) pixels of all
    patches. A learned vector takes the place of the missing patches."""

    position: Tensor

    def __init__(
        self, input_shape: Sequence[Count], num_inputs: Count, patch: Count, width: Count, heads: Count, layers: Count
    ) -> None:
        super().__init__()
        check_width("task.decoder", width, heads)
        self.input, self.missing = nn.Linear(num_inputs, width), nn.Parameter(0.02 * torch.randn(width))
        self.register_buffer("position", positions(*grid_of(input_shape, patch), width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, 0.0, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, input_shape[0] * patch**2)

    def forward(self, seen: Tensor, kept: Tensor) -> Tensor:
        """Return the pixels."""
        seen = self.input(seen)
        x = self.missing.to(seen.dtype).expand(len(seen), len(self.position), -1)
        x = x.scatter(1, kept[:, :, None].expand_as(seen), seen) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def patches(x: Tensor, patch: int) -> Tensor:
    """Return the patches of images (B, C, H, W), row by row: (B, L, C * patch * patch)."""
    rows, columns = grid_of(x.shape[1:], patch)
    parts = x.reshape(len(x), x.shape[1], rows, patch, columns, patch)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(len(x), rows * columns, -1)


def images(parts: Tensor, shape: Sequence[int], patch: int) -> Tensor:
    """Return the images (B, C, H, W) of these patches. shape: (C, H, W)."""
    rows, columns = grid_of(shape, patch)
    split = parts.reshape(len(parts), rows, columns, shape[0], patch, patch)
    return split.permute(0, 3, 1, 4, 2, 5).reshape(len(parts), *shape)


def chosen(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the rows of values (B, L, D) with these numbers (B, K): (B, K, D)."""
    return values.gather(1, numbers[:, :, None].expand(-1, -1, values.shape[2]))


def positions(rows: int, columns: int, width: int) -> Tensor:
    """Return (rows * columns, width): a quarter each of sines and cosines of the row and the column, at frequencies
    from 1 to 1/10000."""
    steps = 10000.0 ** -(torch.arange(width // 4) / (width // 4))
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * steps for place in (row, column)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], 1)


def grid_of(shape: Sequence[int], patch: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of patches. Raise ConfigError if the shape has none."""
    if len(shape) != 3 or shape[1] % patch or shape[2] % patch:
        raise ConfigError(
            f"model.patch={patch}: expected images (C, H, W) whose height and width are multiples of it, got samples "
            f"of shape {list(shape)}"
        )
    return shape[1] // patch, shape[2] // patch


def check_width(key: str, width: int, heads: int) -> None:
    """Raise ConfigError unless the width fits the heads and the positions."""
    if width % heads or width % 4:
        raise ConfigError(f"{key}.width={width}: must be a multiple of {key}.heads={heads} and of 4")
