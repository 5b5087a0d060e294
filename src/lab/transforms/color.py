"""Random changes of an image's colors, as in torchvision's ColorJitter but in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from lab.transforms.fields import _PerField
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import NotNegative, Rule

GREY = (0.299, 0.587, 0.114)  # of red, green, blue: ITU-R BT.601


class ColorJitter(_PerField):
    """Change brightness, contrast, saturation and hue, in this order, of images (B, 3, H, W), floating point in [0, 1].
    Each image has its own random factors. Put it after ToFloat and before Normalize.

    brightness, contrast, saturation: the factor is uniform between max(0, 1 - value) and 1 + value. hue: the shift is
    uniform between -value and value; 1 is the whole circle of hues.
    """

    random = True
    dims = (4,)

    def __init__(
        self,
        field: str | Sequence[str],
        brightness: NotNegative,
        contrast: NotNegative,
        saturation: NotNegative,
        hue: Annotated[float, Rule(at_least=0, at_most=0.5)],
        seed: int,
    ) -> None:
        super().__init__(field)
        self._most, self._hue, self._draws = (brightness, contrast, saturation), hue, SampleRNG(seed, "ColorJitter")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return three factors and the shift of the hue, (B, 4)."""
        drawn = 2 * self._draws.uniform(sample_ids, 4) - 1
        factors = [(1 + drawn[:, i] * most).clamp(min=0) for i, most in enumerate(self._most)]
        return torch.stack([*factors, drawn[:, 3] * self._hue], 1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the changed images. Raise ConfigError for other channels or dtypes."""
        if x.shape[1] != 3 or not x.is_floating_point():
            raise ConfigError(
                f"data.transforms: ColorJitter requires floats (B, 3, H, W), got {x.dtype} of {tuple(x.shape)}"
            )
        bright, contrast, saturation, hue = drawn.to(x.dtype).view(-1, 4, 1, 1, 1).unbind(1)
        x = (x * bright).clamp(0, 1)
        x = mixed(x, grey(x).mean((2, 3), keepdim=True), contrast)
        x = mixed(x, grey(x), saturation)
        return turned(x, hue) if self._hue else x


def grey(x: Tensor) -> Tensor:
    """Return gray images, (B, 3, H, W) -> (B, 1, H, W)."""
    red, green, blue = x.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def mixed(x: Tensor, towards: Tensor, share: Tensor) -> Tensor:
    """Return towards + share * (x - towards), clipped to [0, 1]."""
    return (towards + share * (x - towards)).clamp(0, 1)


def turned(x: Tensor, by: Tensor) -> Tensor:
    """Return x, (B, 3, H, W), with the hue (of HSV) shifted by a fraction of the circle."""
    value, chroma = x.amax(1), x.amax(1) - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = sector / 6 + by.squeeze(1)
    # distance of each channel's hue from this hue, in sectors of 60 degrees
    own = torch.tensor([5.0, 3.0, 1.0], device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
    place = (own + 6 * hue.unsqueeze(1)) % 6
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(place, 4 - place).clamp(0, 1)
