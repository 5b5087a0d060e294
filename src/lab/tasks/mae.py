"""Masked autoencoder (MAE, He et al. 2022): the model sees some patches of an image, a decoder reconstructs the
others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lab.models.vit import images, patches
from lab.tasks.base import Batch, Losses, Task
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.loggers import grid
from samebits.schema import Share


class MAE(Task):
    """model: has `patch` and `features(x, kept)`, which encodes the patches with the numbers `kept` (B, K) of
    batch["x"] as (B, K, D), e.g. lab.models.vit.ViT. Its output layer `head` is not trained.

    decoder: (B, K, D), kept -> (B, L, C * patch * patch), pixels of all patches. mask_ratio: share of the patches that
    the model does not see; they are drawn per sample, as a function of the seed and the sample id, so every evaluation
    masks the same ones. The loss is the mean squared error over the masked patches. normalize: compare pixels after
    subtracting the mean of their patch and dividing by its standard deviation.
    """

    needs_sample_ids = True

    def __init__(self, decoder: nn.Module, mask_ratio: Share, normalize: bool, seed: int) -> None:
        super().__init__()
        self.decoder, self.mask_ratio, self.normalize = decoder, mask_ratio, normalize
        self.draws = SampleRNG(seed, "MAE")

    def setup(self, model: nn.Module) -> None:
        """Freeze the model's output layer. Raise ConfigError unless the model can encode a part of its patches."""
        if not callable(getattr(model, "features", None)) or not isinstance(getattr(model, "patch", None), int):
            raise ConfigError(
                f"task=mae: expected a model with `patch` and `features(x, kept)`, got {type(model).__name__} - use "
                "model=vit"
            )
        if isinstance(head := getattr(model, "head", None), nn.Module):
            head.requires_grad_(False)

    def losses(self, model: Any, batch: Batch) -> tuple[Losses, Any]:
        """Return the error, (B,), and {"pixels": (B, L, P) the decoder's output, "masked": (B, L) bool}."""
        x = batch["x"]
        target = patches(x, model.patch).float()
        kept, masked = self.masks(batch["sample_id"], target.shape[1])
        pixels = self.decoder(model.features(x, kept), kept).float()
        if pixels.shape != target.shape:
            raise ConfigError(
                f"task.decoder: returns {tuple(pixels.shape[1:])} for each sample, but its patches are "
                f"{tuple(target.shape[1:])} - set task.decoder.patch and input_shape to the model's values"
            )
        if self.normalize:
            mean, std = scale_of(target)
            target = (target - mean) / std
        error = (pixels - target).square().mean(2)
        return {"loss": (error * masked).sum(1) / masked.sum(1)}, {"pixels": pixels, "masked": masked}

    def masks(self, sample_ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the numbers of the patches that the model sees, (B, K) int64 in ascending order, and (B, count) bool,
        True for the others. Raise ConfigError if mask_ratio leaves no patch on one side."""
        hidden = round(self.mask_ratio * count)
        if not 0 < hidden < count:
            raise ConfigError(
                f"task.mask_ratio={self.mask_ratio}: masks {hidden} of {count} patches; some must be masked and some "
                "seen - change it or model.patch"
            )
        order = self.draws.uniform(sample_ids, count).argsort(dim=1, stable=True)
        kept = order[:, hidden:].sort(1).values
        masked = torch.ones_like(order, dtype=torch.bool).scatter(1, kept, False)
        return kept, masked

    def predict(self, model: Any, batch: Batch) -> Tensor:
        """Return the mean of the vectors of all patches, (B, D)."""
        return model.features(batch["x"]).mean(1)

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any]:
        """Return a picture of three rows: the images, their visible patches, and their masked patches as the decoder
        reconstructs them."""
        x = batch["x"][:count].float()
        pixels, masked = output["pixels"][:count], output["masked"][:count, :, None]
        patch = round((x[0].numel() / len(x[0]) / pixels.shape[1]) ** 0.5)
        original = patches(x, patch)
        if self.normalize:
            mean, std = scale_of(original)
            pixels = pixels * std + mean
        rows = [original, original.masked_fill(masked, 0.0), torch.where(masked, pixels.to(original.dtype), original)]
        shown = torch.cat([images(row, x.shape[1:], patch) for row in rows])
        return {"reconstructed": grid(shown.clamp(0, 1), columns=len(x))}


def scale_of(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each patch, (B, L, 1) each."""
    return parts.mean(2, keepdim=True), (parts.var(2, keepdim=True) + 1e-6).sqrt()
