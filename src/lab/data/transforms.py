"""Transforms of whole batches on the device. Randomness is a pure function of (seed, global sample number).

A transform is `(batch, numbers) -> batch`; numbers: (B,) int64 global sample numbers, on the batch's device. Those
with `random = True` are left out in evaluation.
"""

from __future__ import annotations

import torch
from torch import Tensor

Batch = dict[str, Tensor]


class ToFloat:
    """Integers are divided by the largest value of their type (uint8: 255), floats are cast: the field as float32."""

    random = False

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, batch: Batch, numbers: Tensor) -> Batch:
        x = batch[self.field]
        scaled = x.float() if x.is_floating_point() else x.float() / torch.iinfo(x.dtype).max
        return {**batch, self.field: scaled}


def compose(transforms: list) -> object:
    def apply(batch: Batch, numbers: Tensor) -> Batch:
        for transform in transforms:
            batch = transform(batch, numbers)
        return batch

    return apply
