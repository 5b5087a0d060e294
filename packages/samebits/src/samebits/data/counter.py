"""Random numbers on the batch's device as a pure function of (seed, stream, sample id, index of the draw): no state.

The numbers are equal on all devices and for any number of ranks, workers and micro-batches. They are computed by the
finalizer of splitmix64 over a counter, in int64 arithmetic that wraps around.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from samebits.data.permutation import GOLDEN, mix64, shift, signed

_BITS = 24  # bits per number: exact as a float32 in [0, 1)


class SampleRNG:
    """Random numbers per sample. stream: a name; numbers of different streams are independent."""

    def __init__(self, seed: int, stream: str) -> None:
        key = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(stream.encode()) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
        for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            key = ((key ^ (key >> 29)) * multiplier) & 0xFFFFFFFFFFFFFFFF
        self._key = signed(key ^ (key >> 32))

    def _bits(self, sample_ids: Tensor, count: int) -> Tensor:
        """Return (B, count) int64 of _BITS random bits each; sample_ids: (B,) int64."""
        state = mix64(sample_ids * GOLDEN + self._key)
        # 1, 2, ..., count. ~ prevents torch.compile from folding arange * constant, which does not fit into an int64
        draw = ~torch.arange(-2, -2 - count, -1, device=sample_ids.device) * GOLDEN
        bits: Tensor = shift(mix64(state[:, None] + draw), 64 - _BITS)
        return bits

    def uniform(self, sample_ids: Tensor, count: int) -> Tensor:
        """Return (B, count) float32 in [0, 1); sample_ids: (B,) int64."""
        return self._bits(sample_ids, count).float() * 2.0**-_BITS

    def normal(self, sample_ids: Tensor, count: int) -> Tensor:
        """Return (B, count) float32, standard normal (Box-Muller), at most 5.8 in size; sample_ids: (B,)
        int64."""
        radius, angle = self.uniform(sample_ids, 2 * count).chunk(2, 1)
        return torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)

    def below(self, sample_ids: Tensor, limits: tuple[int, ...]) -> Tensor:
        """Return (B, len(limits)) int64, column j in [0, limits[j]); sample_ids: (B,) int64."""
        columns = self._bits(sample_ids, len(limits)).unbind(1)
        return torch.stack([bits * limit >> _BITS for bits, limit in zip(columns, limits, strict=True)], 1)
