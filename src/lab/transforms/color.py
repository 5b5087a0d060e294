"""Random changes of an image's colours, as torchvision's ColorJitter has them but for their order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.transforms.fields import _PerField
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import NotNegative

GREY = (0.299, 0.587, 0.114)  # of red, green, blue: ITU-R BT.601


class ColorJitter(_PerField):
    """Images (B, 3, H, W), floating point in [0, 1]: brightness, contrast, saturation and hue, in this order, each by a
    factor of an image's own. Put it behind ToFloat and before Normalize.

    brightness, contrast, saturation: a factor is drawn evenly between 1 - value and 1 + value, but not below 0. hue: a
    part of the circle of hues, at most 0.5, by which each is turned to either side."""

    random = True
    dims = (4,)

    def __init__(
        self,
        field: str | Sequence[str],
        brightness: NotNegative,
        contrast: NotNegative,
        saturation: NotNegative,
        hue: NotNegative,
        seed: int,
    ) -> None:
        super().__init__(field)
        if hue > 0.5:
            raise ConfigError(f"data.transforms: ColorJitter.hue={hue}: at most 0.5, half of the circle")
        self._most, self._hue, self._draws = (brightness, contrast, saturation), hue, SampleRNG(seed, "ColorJitter")

    def prepare(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(B, 4): three factors, and the turn of the hue."""
        drawn = 2 * self._draws.uniform(numbers, 4) - 1
        factors = [(1 + drawn[:, i] * most).clamp(min=0) for i, most in enumerate(self._most)]
        return torch.stack([*factors, drawn[:, 3] * self._hue], 1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        if x.shape[1] != 3 or not x.is_floating_point():
            raise ConfigError(
                f"data.transforms: ColorJitter takes colours as floats, (B, 3, H, W), not {x.dtype} of {tuple(x.shape)}"
            )
        bright, contrast, saturation, hue = drawn.to(x.dtype).view(-1, 4, 1, 1, 1).unbind(1)
        x = (x * bright).clamp(0, 1)
        x = mixed(x, grey(x).mean((2, 3), keepdim=True), contrast)
        x = mixed(x, grey(x), saturation)
        return turned(x, hue) if self._hue else x


def grey(x: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W)."""
    red, green, blue = x.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def mixed(x: Tensor, towards: Tensor, share: Tensor) -> Tensor:
    """share of x, the rest of `towards`; beyond 1 away from it."""
    return (towards + share * (x - towards)).clamp(0, 1)


def turned(x: Tensor, by: Tensor) -> Tensor:
    """The hue of (B, 3, H, W) turned by a part of the circle, in the model of hue, saturation and value."""
    value, chroma = x.amax(1), x.amax(1) - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = sector / 6 + by.squeeze(1)
    # of a channel: how far its own hue lies from this one, in sectors of 60 degrees
    own = torch.tensor([5.0, 3.0, 1.0], device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
    place = (own + 6 * hue.unsqueeze(1)) % 6
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(place, 4 - place).clamp(0, 1)
