"""A synthetic classification data set in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.errors import ConfigError
from samebits.schema import Count

SPLITS = ("train", "val", "test")
SEPARATION = 6.0  # distance of a class mean from the origin, in standard deviations of the noise


class Synthetic:
    """A `BatchDataset` of x: `shape` float32, and y: int64 label below num_classes.

    x is the mean of its class plus unit Gaussian noise. size: samples of the training split; val and test have size //
    8 each. The class means depend on the seed, the samples on the seed and the split. Classes are balanced.
    """

    def __init__(self, size: Count, shape: Sequence[Count], num_classes: Count, seed: int, split: str) -> None:
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: Synthetic has {', '.join(SPLITS)}")
        count = size if split == "train" else max(1, size // 8)
        means = torch.randn(num_classes, *shape, generator=_generator(seed, 0))
        means *= SEPARATION / math.sqrt(means[0].numel())
        generator = _generator(seed, 1 + SPLITS.index(split))
        self._y = torch.randperm(count, generator=generator) % num_classes
        self._x = torch.randn(count, *shape, generator=generator)
        for label in range(num_classes):  # one class at a time: means[y] would double the memory
            self._x[self._y == label] += means[label]
        self.spec = {"x": (tuple(shape), self._x.dtype), "y": ((), self._y.dtype)}
        self.nbytes = self._x.nbytes + self._y.nbytes

    def __len__(self) -> int:
        return len(self._y)

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Write sample rows[i] into out[field][i] and return out. rows: (B,) int64. out: None creates new tensors."""
        index = torch.from_numpy(rows)
        if out is None:
            out = {field: torch.empty((len(rows), *shape), dtype=dtype) for field, (shape, dtype) in self.spec.items()}
        torch.index_select(self._x, 0, index, out=out["x"])
        torch.index_select(self._y, 0, index, out=out["y"])
        return out


def _generator(seed: int, stream: int) -> torch.Generator:
    """Return an independent generator for each (seed, stream)."""
    mixed = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)  # manual_seed takes 63 bits
