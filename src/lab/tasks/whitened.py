"""Classification with a first layer that is computed from the training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from engine.config import Count, Positive
from engine.data import H5Dataset
from engine.errors import ConfigError
from lab.tasks.base import Metric
from lab.tasks.supervised import Supervised
from lab.transforms.fields import Normalize, ToFloat


class Whitened(Supervised):
    """As Supervised; a new run first calls model.whiten(images), with `count` images spread over the file.

    path, group, dataset: where they are. mean, std: as of the Normalize in data.transforms. criterion, metrics: as for
    Supervised.
    """

    def __init__(
        self,
        criterion: Any,
        metrics: Mapping[str, Metric],
        path: str | Sequence[str],
        group: str,
        dataset: str,
        count: Count,
        mean: Sequence[float],
        std: Sequence[Positive],
    ) -> None:
        super().__init__(criterion, metrics)
        self.path, self.group, self.dataset, self.count = path, group, dataset, count
        self.transforms = (ToFloat("x"), Normalize("x", mean, std))

    def initialize(self, model: nn.Module) -> str:
        whiten: Any = getattr(model, "whiten", None)
        if whiten is None:
            raise ConfigError(f"task=whitened: {type(model).__name__} has no layer to whiten - use model=cifar_fast")
        data = H5Dataset(self.path, {"x": self.dataset}, {"train": {"group": self.group}}, "train")
        rows = np.unique(np.linspace(0, len(data) - 1, self.count).astype(np.int64))
        batch = data.gather(rows)
        for transform in self.transforms:
            batch = transform(batch, rows)  # type: ignore[arg-type]
        whiten(batch["x"])
        return f"first layer: principal components of 2x2 patches of {len(rows):,} images"
