"""Wasserstein GAN with gradient penalty (Gulrajani et al. 2017): critic and generator, each with its own optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lab.tasks.base import Batch, Losses, Metric, OptimizerStep, Task
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.loggers import grid
from samebits.schema import Count, NotNegative


class WGAN(Task):
    """model: the generator, noise (B, *noise_shape) -> (B, ...), which is reshaped to batch["x"], of as many values.

    critic: (B, ...) -> (B, N) scores, averaged over N; it must not contain BatchNorm, because the penalty is on
    per-sample gradients. critic_steps: critic updates per generator update. In evaluations the loss is the critic's
    estimate of the Wasserstein distance between batch["x"] and generated samples. Metrics are called with the generated
    samples.
    """

    loss_names = ("real", "fake")
    needs_sample_ids = True
    not_compiled = ("penalties",)  # torch.compile does not support double backward

    def __init__(
        self,
        critic: nn.Module,
        noise_shape: Sequence[Count],
        critic_steps: Count,
        penalty: NotNegative,
        seed: int,
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        self.critic, self.noise_shape, self.critic_steps, self.penalty = critic, noise_shape, critic_steps, penalty
        self.draws = {name: SampleRNG(seed, f"WGAN {name}") for name in ("critic", "generator", "between", "scored")}
        self.metrics = metrics

    def objectives(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        """Return the critic and the generator."""
        return {"critic": [self.critic], "generator": [model]}

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Update the critic, and the generator in every critic_steps-th step."""
        micro_batches = list(batches)
        values = optimizer_step("critic", micro_batches)
        return values | optimizer_step("generator", micro_batches) if (step + 1) % self.critic_steps == 0 else values

    def critic_losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the critic's loss with its parts: real, fake and penalty, (B,) each."""
        with torch.no_grad():
            generated = self.generate(model, batch, "critic")
        real, fake, penalty = self.scores(batch["x"]), self.scores(generated), self.penalties(batch, generated)
        return {"loss": fake - real + self.penalty * penalty, "real": real, "fake": fake, "penalty": penalty}, generated

    def penalties(self, batch: Batch, generated: Tensor) -> Tensor:
        """Return the gradient penalty (B,): (norm of the gradient - 1) ** 2 between real and generated samples."""
        weight = self.draws["between"].uniform(batch["sample_id"], 1)
        real, fake = batch["x"].flatten(1), generated.flatten(1)
        mixed = torch.lerp(real, fake.to(real.dtype), weight).requires_grad_()
        (gradient,) = torch.autograd.grad(self.scores(mixed.view_as(generated)).sum(), mixed, create_graph=True)
        return (gradient.norm(dim=1) - 1).square()

    def generator_losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the generator's loss: the negative score of its samples, (B,)."""
        generated = self.generate(model, batch, "generator")
        return {"loss": -self.scores(generated)}, generated

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the losses and the output of an evaluation; training uses critic_losses and generator_losses."""
        generated = self.predict(model, batch)
        real, fake = self.scores(batch["x"]), self.scores(generated)
        return {"loss": real - fake, "real": real, "fake": fake}, generated

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return a generated sample for each sample id, of the shape of batch["x"]."""
        return self.generate(model, batch, "scored")

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any]:
        """Return an image of generated samples."""
        return {"generated": grid(output[:count])}

    def generate(self, model: nn.Module, batch: Batch, stream: str) -> Tensor:
        """Return generated samples of the shape of batch["x"]. stream: name of the random numbers, a key of
        self.draws."""
        noise = self.draws[stream].normal(batch["sample_id"], math.prod(self.noise_shape))
        generated, shape = model(noise.view(-1, *self.noise_shape)), batch["x"].shape
        if generated.numel() != shape.numel():
            raise ConfigError(
                f"model: generates samples of shape {tuple(generated.shape[1:])}, expected {tuple(shape[1:])}, "
                "the shape of batch['x']"
            )
        return generated.reshape(shape)

    def scores(self, x: Tensor) -> Tensor:
        """Return the critic's score of each sample, (B,)."""
        return self.critic(x).float().flatten(1).mean(1)
