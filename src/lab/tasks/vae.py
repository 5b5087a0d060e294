"""A variational autoencoder (Kingma & Welling 2014)."""

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

    The encoder returns mean and log-variance of a Gaussian, (B, D) each. x: in [0, 1], Bernoulli probabilities.
    Losses in nats per sample: `reconstruction`, and `kl`, the divergence from the standard Gaussian. The noise is a
    function of seed and sample number, the same in every evaluation. kl_factor: 1 makes the loss the negative ELBO.
    """

    loss_names = ("reconstruction", "kl")
    needs_sample_ids = True

    def __init__(self, kl_factor: NotNegative, seed: int) -> None:
        super().__init__()
        self.kl_factor, self.draws = kl_factor, SampleRNG(seed, "VAE")

    def setup(self, model: nn.Module) -> None:
        if not isinstance(model, nn.ModuleDict) or not {"encoder", "decoder"} <= model.keys():
            raise ConfigError(f"task=vae: needs a model of an encoder and a decoder, not {type(model).__name__} - "
                              "use model=autoencoder")  # fmt: skip

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        assert isinstance(model, nn.ModuleDict)
        x = batch["x"]
        mean, log_variance = model["encoder"](x).float().chunk(2, dim=1)
        noise = self.draws.normal(batch["sample_id"], mean.shape[1])
        logits = model["decoder"](mean + torch.exp(0.5 * log_variance) * noise).float()
        if logits.numel() != x.numel():
            sizes = f"puts out {logits[0].numel()} values a sample, and x has {x[0].numel()}"
            raise ConfigError(f"model.modules.decoder: {sizes} - set model.modules.decoder.num_outputs")
        logits = logits.view(x.shape)
        bits = F.binary_cross_entropy_with_logits(logits, x, reduction="none")
        values = {"reconstruction": bits.flatten(1).sum(1), "kl": divergence(mean, log_variance)}
        return {"loss": values["reconstruction"] + self.kl_factor * values["kl"], **values}, logits

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any]:
        above_and_below = torch.cat([batch["x"][:count].float(), output[:count].sigmoid()])
        return {"reconstructed": grid(above_and_below, columns=len(above_and_below) // 2)}


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """mean, log_variance: (B, D) -> (B,) KL divergence from the standard Gaussian, in nats."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
