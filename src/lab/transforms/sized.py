"""Images of another size: random parts, resized (Szegedy et al. 2015, "Going deeper with convolutions"), and what is
scored. Resizing is antialiased, as PIL and torchvision do it, by two products with matrices of weights: on a GPU these
cost next to nothing, and each image may have a part of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lab.transforms.fields import _PerField
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count, Positive, Share

TRIES = 10  # parts that are drawn for each image; the first one that lies within it is taken


class _Sized(_PerField):
    """Of a list of fields one of three dimensions is a map of labels, (B, H, W): its values are taken, not mixed."""

    dims = (3, 4)

    def __init__(self, field: str | Sequence[str], size: Sequence[Count]) -> None:
        super().__init__(field)
        if len(size) != 2:
            raise ValueError(f"size must be [height, width], got {list(size)}")
        self.height, self.width = size


class RandomResizedCrop(_Sized):
    """A random part of the image, resized to `size` (H, W).

    area: [low, high] of its share of the image's area. ratio: [low, high] of width / height, drawn evenly on a log
    scale. Where no part of TRIES fits, the largest one in the middle whose ratio is allowed."""

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
        if not (len(area) == len(ratio) == 2 and 0 < area[0] <= area[1] <= 1 and 0 < ratio[0] <= ratio[1]):
            raise ConfigError(
                f"data.transforms: RandomResizedCrop needs area and ratio as [low, high], area in ]0, 1]; got area="
                f"{list(area)}, ratio={list(ratio)}"
            )
        self._area, self._ratio, self._draws = list(area), list(ratio), SampleRNG(seed, "RandomResizedCrop")

    def prepare(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(B, 4) int64: top, left, height, width."""
        height, width = x.shape[-2:]
        drawn = self._draws.uniform(numbers, 2 * TRIES + 2)
        areas, ratios = drawn[:, :TRIES], drawn[:, TRIES : 2 * TRIES]
        low, high = (math.log(one) for one in self._ratio)
        areas = (self._area[0] + areas * (self._area[1] - self._area[0])) * (height * width)
        ratios = torch.exp(low + ratios * (high - low))
        wide, tall = (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        first = fits.to(torch.uint8).argmax(1, keepdim=True)  # of equal ones the first
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
        return resampled(x, drawn, self.height, self.width)


class Resize(_Sized):
    """The whole image, resized to `size` (H, W)."""

    random = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        whole = torch.tensor([0, 0, *x.shape[-2:]], device=x.device).expand(len(x), 4)
        return resampled(x, whole, self.height, self.width)


class CenterCrop(_Sized):
    """The middle of the image, `size` (H, W); one that has this size already stays."""

    random = False
    one_size = True

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height < self.height or width < self.width:
            size = [self.height, self.width]
            raise ConfigError(f"data.transforms: CenterCrop.size={size}: larger than the image, {[height, width]}")
        top, left = (height - self.height) // 2, (width - self.width) // 2
        return x[..., top : top + self.height, left : left + self.width]


def resampled(x: Tensor, parts: Tensor, height: int, width: int) -> Tensor:
    """x: (B, C, H, W) floating point, or labels (B, H, W); parts: (B, 4) int64 top, left, height, width -> the same of
    this height and width. Of labels those of the nearest pixels."""
    if x.dim() == 3:
        y = nearest(parts[:, 0], parts[:, 2], height)[:, :, None]
        return x[
            torch.arange(len(x), device=x.device)[:, None, None], y, nearest(parts[:, 1], parts[:, 3], width)[:, None]
        ]
    if not x.is_floating_point():
        raise ConfigError(f"data.transforms: images are resized as floats, not as {x.dtype}; put ToFloat before it")
    exact = torch.promote_types(x.dtype, torch.float32)  # half precision has no place for each pixel of a large image
    top, left, rows, columns = parts.to(exact).unbind(1)
    down = weights(top, rows, x.shape[-2], height).to(x.dtype)
    across = weights(left, columns, x.shape[-1], width).to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return torch.einsum("bih,bchw,bjw->bcij", down, x, across)


def nearest(begin: Tensor, length: Tensor, target: int) -> Tensor:
    """(B, target) int64: the source pixels under the middles of the target's."""
    places = 2 * torch.arange(target, device=begin.device) + 1  # in whole numbers, so alike on every device
    return begin[:, None] + places * length[:, None] // (2 * target)


def weights(begin: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """(B, target, source): how much of each source pixel is in each target pixel, for parts that begin and are as long
    as (B,) say: a triangle as wide as two target pixels, or two source pixels where these are larger."""
    scale = (length / target)[:, None, None]
    pixels = torch.arange(source, device=begin.device, dtype=begin.dtype)
    middles = (torch.arange(target, device=begin.device, dtype=begin.dtype)[:, None] + 0.5) * scale
    distance = (pixels - begin[:, None, None] + 0.5 - middles) / scale.clamp(min=1)
    inside = (pixels >= begin[:, None, None]) & (pixels < (begin + length)[:, None, None])
    triangle = (1 - distance.abs()).clamp(min=0) * inside
    return triangle / triangle.sum(2, keepdim=True)
