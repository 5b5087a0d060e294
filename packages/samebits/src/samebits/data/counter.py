"""Random numbers on the batch's device as a pure function of (seed, stream, sample number, draw): no state.

The same numbers on any device, for any number of ranks, workers and micro-batches. Splitmix's finaliser over a counter,
in int64 arithmetic that wraps around.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from samebits.data.permutation import GOLDEN, mix64, shift, signed

_BITS = 24  # of each draw: exact as a float32 in [0, 1)


class SampleRNG:
    """stream: a name; draws under different names have nothing in common."""

    def __init__(self, seed: int, stream: str) -> None:
        key = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(stream.encode()) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
        for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            key = ((key ^ (key >> 29)) * multiplier) & 0xFFFFFFFFFFFFFFFF
        self._key = signed(key ^ (key >> 32))

    def _bits(self, numbers: Tensor, count: int) -> Tensor:
        """numbers: (B,) int64 -> (B, count) int64 of _BITS random bits."""
        state = mix64(numbers * GOLDEN + self._key)
        # 1, 2, ..., count. The ~ keeps torch.compile from working out arange * constant, which does not fit an int64
        draw = ~torch.arange(-2, -2 - count, -1, device=numbers.device) * GOLDEN
        bits: Tensor = shift(mix64(state[:, None] + draw), 64 - _BITS)
        return bits

    def uniform(self, numbers: Tensor, count: int) -> Tensor:
        """numbers: (B,) int64 -> (B, count) float32 in [0, 1)."""
        return self._bits(numbers, count).float() * 2.0**-_BITS

    def normal(self, numbers: Tensor, count: int) -> Tensor:
        """numbers: (B,) int64 -> (B, count) float32, standard normal (Box-Muller), none beyond 5.8."""
        radius, angle = self.uniform(numbers, 2 * count).chunk(2, 1)
        return torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)

    def below(self, numbers: Tensor, limits: tuple[int, ...]) -> Tensor:
        """numbers: (B,) int64 -> (B, len(limits)) int64, each in [0, its limit)."""
        columns = self._bits(numbers, len(limits)).unbind(1)
        return torch.stack([bits * limit >> _BITS for bits, limit in zip(columns, limits, strict=True)], 1)
