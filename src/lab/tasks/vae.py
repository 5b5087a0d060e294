"""Variational autoencoder (VAE, Kingma & Welling 2014)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, Task
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.loggers import grid
from samebits.schema import NotNegative


class VAE(Task):
    """model: an nn.ModuleDict of `encoder`, batch["x"] -> (B, 2 * D), and `decoder`, (B, D) -> logits of x.

    The encoder returns the mean and the log-variance of a Gaussian, (B, D) each. x: in [0, 1], used as Bernoulli
    probabilities. Losses in nats per sample: `reconstruction`, and `kl`, the divergence from the standard Gaussian.
    With kl_factor=1 their weighted sum is the negative ELBO. The noise is a function of the seed and the sample id, so
    every evaluation uses the same noise.
    """

    loss_names = ("reconstruction", "kl")
    needs_sample_ids = True

    def __init__(self, kl_factor: NotNegative, seed: int) -> None:
        super().__init__()
        self.kl_factor, self.draws = kl_factor, SampleRNG(seed, "VAE")

    def setup(self, model: nn.Module) -> None:
        """Raise ConfigError unless the model has an encoder and a decoder."""
        if not isinstance(model, nn.ModuleDict) or not {"encoder", "decoder"} <= model.keys():
            raise ConfigError(f"task=vae: expected a model with an encoder and a decoder, got {type(model).__name__} - "
                              "use model=autoencoder")  # fmt: skip

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss and its parts, (B,) each, and the logits of x."""
        assert isinstance(model, nn.ModuleDict)
        x = batch["x"]
        mean, log_variance = model["encoder"](x).float().chunk(2, dim=1)
        noise = self.draws.normal(batch["sample_id"], mean.shape[1])
        logits = model["decoder"](mean + torch.exp(0.5 * log_variance) * noise).float()
        if logits.numel() != x.numel():
            sizes = f"returns {logits[0].numel()} values per sample, but x has {x[0].numel()}"
            raise ConfigError(f"model.modules.decoder: {sizes} - set model.modules.decoder.num_outputs")
        logits = logits.view(x.shape)
        bits = F.binary_cross_entropy_with_logits(logits, x, reduction="none")
        values = {"reconstruction": bits.flatten(1).sum(1), "kl": divergence(mean, log_variance)}
        return {"loss": values["reconstruction"] + self.kl_factor * values["kl"], **values}, logits

    def predict(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Return "latent", the mean of the code of batch["x"], (B, D), and "reconstruction", which is decoded from it,
        like x."""
        mean, _ = model["encoder"](batch["x"]).float().chunk(2, dim=1)
        return {"latent": mean, "reconstruction": model["decoder"](mean).float().sigmoid().view(batch["x"].shape)}

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any]:
        """Return an image of inputs (top row) and reconstructions (bottom row)."""
        above_and_below = torch.cat([batch["x"][:count].float(), output[:count].sigmoid()])
        return {"reconstructed": grid(above_and_below, columns=len(above_and_below) // 2)}


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the KL divergence from the standard Gaussian in nats, (B,). mean, log_variance: (B, D)."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
