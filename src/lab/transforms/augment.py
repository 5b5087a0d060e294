"""TrivialAugment, wide space (Müller and Hutter 2021, "TrivialAugment: Tuning-free Yet State-of-the-Art Data
Augmentation"): apply one of 14 operations to each image, at a random strength, as Pillow does, up to rounding.

All images go through all of these stages. For an image, every stage except its own operation is the identity, so
the device does not wait for a decision of the host:

    lookup table of 256 values per channel           brightness, contrast, posterize, solarize, autocontrast, equalize
    interpolation with the gray image                color
    interpolation with a smoothed image              sharpness
    copy each pixel from another position, or black  shear, translate, rotate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.transforms.fields import OnDevices, _PerField
from samebits.data import SampleRNG
from samebits.errors import ConfigError

LEVELS = 31
BY_LEVEL: dict[str, Callable[[Tensor], Tensor]] = {  # strength as a function of a level in [0, 1]
    "shear_x": lambda level: 0.99 * level,  # pixels per pixel
    "shear_y": lambda level: 0.99 * level,
    "translate_x": lambda level: (32 * level).floor(),  # pixels
    "translate_y": lambda level: (32 * level).floor(),
    "rotate": lambda level: 135 * level,  # degrees
    "brightness": lambda level: 0.99 * level,  # difference of the factor from 1, which is the identity
    "color": lambda level: 0.99 * level,
    "contrast": lambda level: 0.99 * level,
    "sharpness": lambda level: 0.99 * level,
    # the operations below have no sign
    "posterize": lambda level: 2 ** (6 * level).round(),  # pixels are rounded down to a multiple of it
    "solarize": lambda level: 255 - 255 * level,  # pixels of at least this value are inverted
    "identity": torch.zeros_like,
    "autocontrast": torch.zeros_like,
    "equalize": torch.zeros_like,
}
KINDS = list(BY_LEVEL)
SIGNED = KINDS.index("posterize")


class TrivialAugment(_PerField):
    """Apply TrivialAugment to images (B, C, H, W) with one or three channels, uint8 or floating point in [0, 1]. Floats
    are rounded to 8 bits. Put it after crops and resizes, and before Normalize."""

    random = True
    dims = (4,)

    def __init__(self, field: str | Sequence[str], seed: int) -> None:
        super().__init__(field)
        level = torch.arange(LEVELS) / (LEVELS - 1)
        self._values = OnDevices(torch.stack([value(level) for value in BY_LEVEL.values()]))
        self._draws = SampleRNG(seed, "TrivialAugment")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the index in KINDS and the strength for each image, (B, 2)."""
        kind, level, minus = self._draws.below(sample_ids, (len(KINDS), LEVELS, 2)).unbind(1)
        value = self._values.on(x.device)[kind, level]
        return torch.stack([kind.float(), torch.where((minus == 1) & (kind < SIGNED), -value, value)], 1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the changed images. Raise ConfigError for other channels or dtypes."""
        if x.shape[1] not in (1, 3) or not (x.dtype == torch.uint8 or x.is_floating_point()):
            raise ConfigError(
                "data.transforms: TrivialAugment requires images with one or three channels, uint8 or floats in "
                f"[0, 1], got {x.dtype} of {tuple(x.shape)}"
            )
        kind, value = drawn.unbind(1)

        def strength(name: str, neutral: float) -> Tensor:
            return torch.where(kind == KINDS.index(name), value, neutral)

        y = x.float() if x.dtype == torch.uint8 else (x.float() * 255).round().clamp(0, 255)
        y = with_tables(y, kind, strength)
        y = blended(grey(y), y, 1 + strength("color", 0).view(-1, 1, 1, 1))
        y = blended(smoothed(y), y, 1 + strength("sharpness", 0).view(-1, 1, 1, 1))
        y = moved(y, strength)
        return y.to(torch.uint8) if x.dtype == torch.uint8 else (y / 255).to(x.dtype)


def blended(none: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return none + factor * (x - none), rounded down to integers as in Pillow."""
    return (none + factor * (x - none)).clamp(0, 255).floor()


def grey(x: Tensor) -> Tensor:
    """Return gray images, (B, C, H, W) -> (B, 1, H, W): ITU-R BT.601 in 16 bits, which float32 represents exactly."""
    if x.shape[1] == 1:
        return x
    return ((19595 * x[:, :1] + 38470 * x[:, 1:2] + 7471 * x[:, 2:] + 32768) / 65536).floor()


def smoothed(x: Tensor) -> Tensor:
    """Return the mean of 3 x 3 pixels, with weight 5 for the center; x at the border."""
    height, width = x.shape[2:]
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    inside = ((rows > 0) & (rows < height - 1))[:, None] & (columns > 0) & (columns < width - 1)
    around = F.avg_pool2d(x, 3, 1, padding=1, divisor_override=1)
    return torch.where(inside, ((around + 4 * x) / 13 + 0.5).floor(), x)


def with_tables(x: Tensor, kind: Tensor, strength: Callable[[str, float], Tensor]) -> Tensor:
    """Replace each value by its entry in the lookup table of its image and channel. x: integers below 256."""
    size, channels, height, width = x.shape
    places = x.long() + 256 * torch.arange(size * channels, device=x.device).view(size, channels, 1, 1)
    places = places.flatten()
    ones = torch.ones((), dtype=torch.int32, device=x.device).expand(len(places))
    counts = torch.zeros(size * channels * 256, dtype=torch.int32, device=x.device).scatter_add_(0, places, ones)
    counts = counts.view(size, channels, 256)
    low, high = x.amin((2, 3))[..., None], x.amax((2, 3))[..., None]
    old = torch.arange(256, device=x.device, dtype=torch.float32)

    stretched = (255 * (old - low) / (high - low).clamp(min=1)).clamp(0, 255).floor()
    step = (height * width - counts.gather(2, high.long())) // 255
    before = counts.cumsum(2) - counts
    equal = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255).float()

    def only(name: str, table: Tensor, where: Tensor, others: Tensor) -> Tensor:
        return torch.where((kind == KINDS.index(name)).view(-1, 1, 1) & where, table, others)

    table = only("autocontrast", stretched, high > low, old.expand(size, channels, 256))
    table = only("equalize", equal, step > 0, table)
    # as integers, because their sum does not depend on the order
    mean = (grey(x).sum((1, 2, 3), dtype=torch.int64) / (height * width) + 0.5).floor().view(-1, 1, 1)
    table = blended(torch.zeros_like(mean), table, 1 + strength("brightness", 0).view(-1, 1, 1))
    table = blended(mean, table, 1 + strength("contrast", 0).view(-1, 1, 1))
    multiple = strength("posterize", 1).view(-1, 1, 1)
    table = (table / multiple).floor() * multiple
    table = torch.where(table < strength("solarize", 256).view(-1, 1, 1), table, 255 - table)
    return table.flatten()[places].view_as(x)


def moved(x: Tensor, strength: Callable[[str, float], Tensor]) -> Tensor:
    """Shear around the corner, rotate around the center, and translate, by nearest neighbor. Pixels outside are 0."""
    height, width = x.shape[2:]
    turn = strength("rotate", 0) * (math.pi / 180)
    cos, sin = turn.cos(), turn.sin()
    # (x, y) is copied from (cos x + right y + from_x, down x + cos y + from_y)
    right, down = strength("shear_x", 0) - sin, strength("shear_y", 0) + sin
    from_x = strength("translate_x", 0) + (width - cos * width + sin * height) / 2
    from_y = strength("translate_y", 0) + (height - sin * width - cos * height) / 2
    cos, right, down, from_x, from_y = (one.view(-1, 1, 1) for one in (cos, right, down, from_x, from_y))
    rows = (torch.arange(height, device=x.device) + 0.5).view(-1, 1)
    columns = torch.arange(width, device=x.device) + 0.5
    across, along = cos * columns + right * rows + from_x, down * columns + cos * rows + from_y
    inside = (across >= 0) & (across < width) & (along >= 0) & (along < height)
    source = along.long().clamp(0, height - 1) * width + across.long().clamp(0, width - 1)
    taken = x.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
    return taken * inside.unsqueeze(1)
