"""Classification of images, after airbench (Jordan 2024, github.com/KellerJordan/cifar10-airbench): a first layer that
is computed from the training images, kernels that keep their norm, evaluations that average over views of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from engine.config import Count, Positive
from engine.data import H5Dataset
from engine.errors import ConfigError
from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from lab.transforms.fields import Normalize, ToFloat


class Whitened(Supervised):
    """As Supervised; a new run first calls model.whiten(images), with `count` images spread over the file, and each
    update ends with model.normalize(), where the model has it.

    path, group, dataset: where they are. mean, std: as of the Normalize in data.transforms. criterion, metrics: as for
    Supervised. views: of an image (B, C, H, W), over which evaluations and predictions average the outputs: VIEWS.
    """

    VIEWS = (1, 2, 6)  # the image; and its mirror image; and both moved by a pixel, up and left, or down and right

    def __init__(
        self,
        criterion: Callable[[Any, Batch], Any],
        metrics: Mapping[str, Metric],
        path: str | Sequence[str],
        group: str,
        dataset: str,
        count: Count,
        mean: Sequence[float],
        std: Sequence[Positive],
        views: Count = 1,
    ) -> None:
        super().__init__(criterion, metrics)
        if views not in self.VIEWS:
            raise ConfigError(f"task.views={views}: one of {', '.join(map(str, self.VIEWS))}")
        self.views = views
        self.path, self.group, self.dataset, self.count = path, group, dataset, count
        self.transforms = (ToFloat("x"), Normalize("x", mean, std))

    def updated(self, model: nn.Module) -> None:
        normalize: Any = getattr(model, "normalize", None)
        if normalize is not None:
            normalize()

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        x = batch["x"]
        if model.training or self.views == 1:
            return model(x)
        if self.views == 2:
            return mirrored(model, x)
        padded = F.pad(x, (1, 1, 1, 1), "reflect")
        moved = [mirrored(model, padded[..., at : at + x.shape[-2], at : at + x.shape[-1]]) for at in (0, 2)]
        return (mirrored(model, x) + (moved[0] + moved[1]) / 2) / 2

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


def mirrored(model: nn.Module, x: Tensor) -> Tensor:
    """The mean of the outputs for images and for their mirror images."""
    return (model(x) + model(x.flip(-1))) / 2
