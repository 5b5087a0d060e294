"""Transforms that change the size of images: random resized crop (Szegedy et al. 2015, "Going deeper with
convolutions"), resize and center crop.

Resizing is antialiased as in PIL and torchvision. It is computed as two products with weight matrices, which is cheap
on a GPU and allows a different crop for each image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lab.transforms.fields import _PerField
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count, Positive, Share

TRIES = 10  # crops that are drawn for each image; the first one inside the image is used


class _Sized(_PerField):
    """The base class. A field (B, H, W) in a list of fields is a label map and is resized by nearest neighbor."""

    dims = (3, 4)

    def __init__(self, field: str | Sequence[str], size: Sequence[Count]) -> None:
        super().__init__(field)
        if len(size) != 2:
            raise ValueError(f"size must be [height, width], got {list(size)}")
        self.height, self.width = size


class RandomResizedCrop(_Sized):
    """Crop a random part of the image and resize it to `size` (H, W).

    area: [low, high], fraction of the image's area. ratio: [low, high] of width / height, uniform on a log scale. If
    none of TRIES random crops fits, use the largest center crop with an allowed ratio.
    """

    random = True
    one_size = True

    def __init__(
        self,
        field: str | Sequence[str],
        size: Sequence[Count],
        area: Sequence[Share],
        ratio: Sequence[Positive],
        seed: int,
    ) -> None:
        super().__init__(field, size)
        if not (len(area) == len(ratio) == 2 and 0 < area[0] <= area[1] and ratio[0] <= ratio[1]):
            raise ConfigError(
                f"data.transforms: RandomResizedCrop needs area and ratio as [low, high], area in ]0, 1]; got area="
                f"{list(area)}, ratio={list(ratio)}"
            )
        self._area, self._ratio, self._draws = list(area), list(ratio), SampleRNG(seed, "RandomResizedCrop")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return top, left, height and width of the crops, (B, 4) int64."""
        height, width = x.shape[-2:]
        drawn = self._draws.uniform(sample_ids, 2 * TRIES + 2)
        areas, ratios = drawn[:, :TRIES], drawn[:, TRIES : 2 * TRIES]
        low, high = (math.log(ratio) for ratio in self._ratio)
        areas = (self._area[0] + areas * (self._area[1] - self._area[0])) * (height * width)
        ratios = torch.exp(low + ratios * (high - low))
        wide, tall = (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        first = fits.to(torch.uint8).argmax(1, keepdim=True)  # argmax returns the first one that fits
        middle = min(max(width / height, self._ratio[0]), self._ratio[1])
        whole = (min(height, max(1, round(width / middle))), min(width, max(1, round(height * middle))))
        found = fits.any(1)
        rows = torch.where(found, tall.gather(1, first)[:, 0], whole[0])
        columns = torch.where(found, wide.gather(1, first)[:, 0], whole[1])
        places = torch.where(found[:, None], drawn[:, -2:], 0.5)
        top = (places[:, 0] * (height - rows + 1)).long().clamp(max=height - 1)
        left = (places[:, 1] * (width - columns + 1)).long().clamp(max=width - 1)
        return torch.stack([top, left, rows, columns], 1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the resized crops."""
        return resampled(x, drawn, self.height, self.width)


class Resize(_Sized):
    """Resize the whole image to `size` (H, W)."""

    random = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the resized images."""
        whole = torch.tensor([0, 0, *x.shape[-2:]], device=x.device).expand(len(x), 4)
        return resampled(x, whole, self.height, self.width)


class CenterCrop(_Sized):
    """Crop the center of the image, `size` (H, W). Images that have this size do not change."""

    random = False
    one_size = True

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the center crops. Raise ConfigError if an image is smaller."""
        height, width = x.shape[-2:]
        if height < self.height or width < self.width:
            size = [self.height, self.width]
            raise ConfigError(f"data.transforms: CenterCrop.size={size} is larger than the image {[height, width]}")
        top, left = (height - self.height) // 2, (width - self.width) // 2
        return x[..., top : top + self.height, left : left + self.width]


def resampled(x: Tensor, parts: Tensor, height: int, width: int) -> Tensor:
    """Return the crops `parts` of x, resized to (height, width). x: (B, C, H, W) floating point, or labels (B, H, W),
    which are resized by nearest neighbor. parts: (B, 4) int64 top, left, height, width. Raise ConfigError for integer
    images."""
    if x.dim() == 3:
        y = nearest(parts[:, 0], parts[:, 2], height)[:, :, None]
        return x[
            torch.arange(len(x), device=x.device)[:, None, None], y, nearest(parts[:, 1], parts[:, 3], width)[:, None]
        ]
    if not x.is_floating_point():
        raise ConfigError(f"data.transforms: resizing requires floats, got {x.dtype}; put ToFloat before it")
    # half precision cannot represent each pixel position of a large image
    exact = torch.promote_types(x.dtype, torch.float32)
    top, left, rows, columns = parts.to(exact).unbind(1)
    down = weights(top, rows, x.shape[-2], height).to(x.dtype)
    across = weights(left, columns, x.shape[-1], width).to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return torch.einsum("bih,bchw,bjw->bcij", down, x, across)


def nearest(begin: Tensor, length: Tensor, target: int) -> Tensor:
    """Return the source pixel at the center of each target pixel, (B, target) int64."""
    places = 2 * torch.arange(target, device=begin.device) + 1  # integers, so equal on every device
    return begin[:, None] + places * length[:, None] // (2 * target)


def weights(begin: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """Return the weight of each source pixel in each target pixel, (B, target, source). begin, length: of the crops,
    (B,).

    The filter is a triangle whose base is two target pixels, or two source pixels if they are larger.
    """
    scale = (length / target)[:, None, None]
    pixels = torch.arange(source, device=begin.device, dtype=begin.dtype)
    middles = (torch.arange(target, device=begin.device, dtype=begin.dtype)[:, None] + 0.5) * scale
    distance = (pixels - begin[:, None, None] + 0.5 - middles) / scale.clamp(min=1)
    inside = (pixels >= begin[:, None, None]) & (pixels < (begin + length)[:, None, None])
    triangle = (1 - distance.abs()).clamp(min=0) * inside
    return triangle / triangle.sum(2, keepdim=True)
