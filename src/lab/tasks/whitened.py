"""Image classification as in airbench (Jordan 2024, github.com/KellerJordan/cifar10-airbench): the first layer is
computed from the training images, kernels keep their norm, and evaluations average over several views of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError
from samebits.schema import Count


class Whitened(Supervised):
    """Supervised training that calls model.whiten(images) at the start of a new run, with the first `count` training
    images, and model.normalize() (if the model has it) after each update.

    views: number of views of an image over which evaluations and predictions average the outputs; one of VIEWS. path,
    group, dataset, mean, std: not used; configs of old runs contain them.
    """

    uses_rng = False  # `project` draws no random numbers
    VIEWS = (1, 2, 6)  # image; + its mirror image; + both shifted by a pixel up and left, and down and right

    def __init__(
        self,
        criterion: Callable[[Any, Batch], Any],
        metrics: Mapping[str, Metric],
        count: Count,
        views: Count = 1,
        path: Any = None,
        group: str | None = None,
        dataset: str | None = None,
        mean: Any = None,
        std: Any = None,
    ) -> None:
        super().__init__(criterion, metrics)
        if views not in self.VIEWS:
            raise ConfigError(f"task.views={views}: must be one of {', '.join(map(str, self.VIEWS))}")
        self.views, self.count = views, count

    def project(self, model: nn.Module) -> None:
        """Normalize the kernels, if the model has `normalize`."""
        normalize: Any = getattr(model, "normalize", None)
        if normalize is not None:
            normalize()

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the logits; in eval mode their mean over the views."""
        x = batch["x"]
        if model.training or self.views == 1:
            return model(x)
        if self.views == 2:
            return mirrored(model, x)
        padded = F.pad(x, (1, 1, 1, 1), "reflect")
        moved = [mirrored(model, padded[..., at : at + x.shape[-2], at : at + x.shape[-1]]) for at in (0, 2)]
        return (mirrored(model, x) + (moved[0] + moved[1]) / 2) / 2

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str:
        """Compute the first layer from the first `count` training images. Raise ConfigError if the model has no
        `whiten`."""
        whiten: Any = getattr(model, "whiten", None)
        if whiten is None:
            raise ConfigError(f"task=whitened: {type(model).__name__} has no layer to whiten - use model=cifar_fast")
        images = next(batches)["x"].clone()
        while len(images) < self.count:
            images = torch.cat([images, next(batches)["x"]])
        whiten(images[: self.count])
        return f"first layer: principal components of 2x2 patches of {self.count:,} images"


def mirrored(model: nn.Module, x: Tensor) -> Tensor:
    """Return the mean of the outputs for images and for their mirror images."""
    return (model(x) + model(x.flip(-1))) / 2
