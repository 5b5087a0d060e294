"""Mirror images in every other epoch (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.transforms.fields import _PerField
from samebits.data import SampleRNG
from samebits.schema import Count


class AlternatingFlip(_PerField):
    """Half of the images are mirrored, left and right, in even epochs, the other half in odd ones: two epochs show each
    image both ways, where independent draws show a half of them twice the same.

    Which half is drawn from the bits of the image itself, as its row in the file is unknown here. So put this before
    other random transforms. epoch_samples: samples of one epoch.
    """

    random = True
    dims = (4,)

    def __init__(self, field: str | Sequence[str], epoch_samples: Count, seed: int) -> None:
        super().__init__(field)
        self._epoch_samples, self._draws = epoch_samples, SampleRNG(seed, "AlternatingFlip")

    def prepare(self, x: Tensor, numbers: Tensor) -> Tensor:
        # a sum of integers is the same on any device; the bits of one element may be those of many images' backgrounds
        image = x.float().contiguous().view(torch.int32).flatten(1).sum(1)
        return (self._draws.below(image, (2,))[:, 0] + numbers // self._epoch_samples) % 2 == 1

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        return torch.where(drawn.view(-1, 1, 1, 1), x.flip(-1), x)
