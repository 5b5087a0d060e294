"""task=vae: a loss of several outputs, noise that no number of ranks changes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from common import needs
from shipped import Shipped
from torch import nn
from torch.nn import functional as F

from lab.tasks.vae import VAE, divergence
from samebits.errors import ConfigError
from samebits.testing import SMALL, result, start_run

pytestmark = needs("data/digits.h5", "conf/model/autoencoder.yaml")
RUN = ("task=vae", "model=autoencoder", "model.modules.encoder.hidden=[64]", "model.modules.decoder.hidden=[64]",
       "optim.lr=3e-3", "hardware.eval_batch_size=50", "trainer.max_eval_batches=8")  # fmt: skip


class TestVAE(Shipped):
    loss_names = ("reconstruction", "kl")

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


@pytest.mark.slow
def test_the_noise_is_the_sample_s(tmp_path: Path) -> None:
    """In an evaluation the row's: the same scores each time, and in batches of any size."""
    from lab.restore import score_checkpoint

    folder = start_run(tmp_path, *SMALL, *RUN, "trainer.max_steps=4")
    scores = [score_checkpoint(folder, "val", [f"hardware.eval_batch_size={size}"]) for size in (50, 50, 7)]
    assert scores[0] == scores[1] == pytest.approx(scores[2], rel=1e-5)
    assert scores[0] != pytest.approx(score_checkpoint(folder, "val", ["task.seed=1"]), rel=1e-5)
    assert scores[0]["loss"] == pytest.approx(scores[0]["reconstruction"] + scores[0]["kl"], rel=1e-5)
    assert scores[0]["loss"] == pytest.approx(result(folder)["val/loss"], rel=1e-5)


def test_the_loss_is_a_bound_on_the_likelihood() -> None:
    """Of a linear model with two latent variables, against the sum over a fine grid of them."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"encoder": nn.Linear(5, 4), "decoder": nn.Linear(2, 5)})
    x = (torch.rand(3, 5) > 0.5).float()
    axis = torch.linspace(-7, 7, 281)
    z = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        prior = -0.5 * z.square().sum(1) - math.log(2 * math.pi) + 2 * math.log(14 / 280)
        likelihood = -F.binary_cross_entropy_with_logits(
            model["decoder"](z).expand(3, -1, -1), x[:, None].expand(-1, len(z), -1), reduction="none"
        ).sum(2)
        evidence = torch.logsumexp(prior + likelihood, 1)
        batch = {"x": x.repeat(20000, 1), "sample_id": torch.arange(60000)}
        losses, logits = VAE(1.0, seed=0).losses(model, batch)
    bound = {name: value.view(-1, 3).mean(0) for name, value in losses.items()}
    assert logits.shape == batch["x"].shape
    assert (bound["loss"] > -evidence).all()
    mean, log_variance = model["encoder"](x).chunk(2, 1)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    wanted = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(bound["kl"], wanted.detach())
    torch.testing.assert_close(divergence(torch.zeros(2, 3), torch.zeros(2, 3)), torch.zeros(2))


@pytest.mark.slow
def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    for run, line in (
        (("task=vae", "model=mlp"), "expected a model with an encoder and a decoder, got MLP - use model=autoencoder"),
        ((*RUN, "model.modules.decoder.num_outputs=63"), "returns 63 values per sample, but x has 64"),
        ((*RUN, "trainer=fsdp", "hardware.num_procs=2"), "trainer=fsdp: ModuleDict has no forward"),
    ):
        with pytest.raises(ConfigError, match=line):
            start_run(tmp_path, *SMALL, *run)


def test_what_it_shows_are_samples_above_their_reconstructions() -> None:
    x, logits = torch.rand(5, 1, 4, 3), torch.randn(5, 1, 4, 3)
    shown = VAE(kl_factor=1.0, seed=0).show(logits, {"x": x}, 2)["reconstructed"]
    assert torch.equal(shown, torch.cat([torch.cat([*row], 2) for row in (x[:2], logits[:2].sigmoid())], 1))


def test_a_prediction_is_the_mean_of_the_latent_and_its_image() -> None:
    encoder, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), torch.rand(3, 1, 2, 2)
    found = VAE(1.0, 0).predict(nn.ModuleDict({"encoder": encoder, "decoder": nn.Linear(2, 4)}), {"x": x})
    assert torch.equal(found["latent"], encoder(x)[:, :2])
    assert found["reconstruction"].shape == x.shape
