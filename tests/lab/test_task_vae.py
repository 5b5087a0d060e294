"""task=vae: a loss of several outputs, noise that no number of ranks changes."""

from __future__ import annotations

import math
from pathlib import Path

import method
import pytest
import torch
from conftest import needs, result, start_run
from torch import nn
from torch.nn import functional as F

from engine.data.counter import Draws
from engine.errors import ConfigError
from lab.tasks.vae import VAE, divergence

pytestmark = needs("data/digits.h5", "conf/model/autoencoder.yaml")
RUN = ("task=vae", "model=autoencoder", "model.modules.encoder.hidden=[64]", "model.modules.decoder.hidden=[64]",
       "optim.lr=3e-3", "hardware.eval_batch_size=50", "trainer.max_eval_batches=8")  # fmt: skip


class TestVAE(method.Shipped):
    terms = ("reconstruction", "kl")
    overfits_to = 0.7  # of 44 nats, a bit an element; grey pixels have an entropy of their own

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


@pytest.mark.slow
def test_the_noise_is_the_sample_s(tmp_path: Path) -> None:
    """In an evaluation the row's: the same scores each time, and in batches of any size."""
    from lab.restore import score_checkpoint

    folder = start_run(tmp_path, *method.SMALL, *RUN, "trainer.max_steps=4")
    scores = [score_checkpoint(folder, "val", [f"hardware.eval_batch_size={size}"]) for size in (50, 50, 7)]
    assert scores[0] == scores[1] == pytest.approx(scores[2], rel=1e-5)
    assert scores[0] != pytest.approx(score_checkpoint(folder, "val", ["task.seed=1"]), rel=1e-5)
    assert scores[0]["loss"] == pytest.approx(scores[0]["reconstruction"] + scores[0]["kl"], rel=1e-5)
    assert scores[0]["loss"] == pytest.approx(result(folder)["val/loss"], rel=1e-5)


@pytest.mark.slow
def test_what_is_learned_can_be_drawn_from(tmp_path: Path) -> None:
    from lab import load_run

    folder = start_run(tmp_path, *method.SMALL, *RUN, "trainer.max_steps=60")
    decoder = load_run(folder)[0]["decoder"]
    assert result(folder)["val/loss"] < 0.8 * 64 * math.log(2)  # of a decoder that knows nothing
    with torch.no_grad():
        assert decoder(torch.randn(3, 16)).sigmoid().shape == (3, 64)


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
        batch = {"x": x.repeat(20000, 1), "number": torch.arange(60000)}
        losses, logits = VAE(1.0, seed=0).losses(model, batch)
    bound = {name: value.view(-1, 3).mean(0) for name, value in losses.items()}
    assert logits.shape == batch["x"].shape
    assert (bound["loss"] > -evidence).all()
    mean, log_variance = model["encoder"](x).chunk(2, 1)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    wanted = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(bound["kl"], wanted.detach())
    torch.testing.assert_close(divergence(torch.zeros(2, 3), torch.zeros(2, 3)), torch.zeros(2))


def test_draws_of_a_normal_distribution() -> None:
    noise = Draws(3, "noise").normal(torch.arange(50_000), 4)
    assert noise.isfinite().all()
    wanted = {0: 0.0, 1: 1.0, 2: 0.0, 3: 3.0}
    for power, moment in enumerate(wanted.values()):
        assert noise.pow(power + 1).mean(0).tolist() == pytest.approx([moment] * 4, abs=0.1), power + 1
    together = torch.corrcoef(torch.cat([noise[1:], noise[:-1]], 1).T)
    assert (together - torch.eye(8)).abs().max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["model=mlp"], "needs a model of an encoder and a decoder, not MLP - use model=autoencoder"),
        (["model.modules.decoder.num_outputs=63"], "puts out 63 values a sample, and x has 64"),
    ],
)
def test_a_model_that_does_not_fit(tmp_path: Path, overrides: list[str], line: str) -> None:
    run = [option for option in RUN if not (option.startswith("model") and overrides == ["model=mlp"])]
    with pytest.raises(ConfigError, match=line):
        start_run(tmp_path, *method.SMALL, *run, *overrides)


@pytest.mark.slow
def test_fsdp_says_what_it_cannot_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trainer=fsdp: a ModuleDict has no forward of its own"):
        start_run(tmp_path, *method.SMALL, *RUN, "trainer=fsdp", "hardware.num_procs=2")


def test_what_it_shows_are_samples_above_their_reconstructions() -> None:
    x, logits = torch.rand(5, 1, 4, 3), torch.randn(5, 1, 4, 3)
    shown = VAE(kl_factor=1.0, seed=0).show(logits, {"x": x}, 2)["reconstructed"]
    assert torch.equal(shown, torch.cat([torch.cat([*row], 2) for row in (x[:2], logits[:2].sigmoid())], 1))
