"""Denoising diffusion (DDPM, Ho et al. 2020): generate images from noise with a network that predicts the noise."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lab.tasks.base import Batch, Losses, Task
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count


class DDPM(Task):
    """model: (B, C + channels, H, W) -> (B, C, H, W): noisy images, with the time in `channels` additional channels, to
    their noise.

    batch["x"]: images (B, C, H, W) in [0, 1]. steps: number of steps from an image to pure noise. schedule: of the
    noise, "cosine" (Nichol & Dhariwal 2021) or "linear". Noise and time are functions of the sample id, so every
    evaluation uses the same ones.
    """

    needs_sample_ids = True
    no_prediction = (
        "task=ddpm: has no prediction for a sample, because it generates new images - draw them in Python, "
        "lab.load_run(RUN).sample(64)"
    )

    def __init__(self, steps: Count, schedule: Literal["cosine", "linear"], channels: Count, seed: int) -> None:
        super().__init__()
        if channels % 2:
            raise ConfigError(f"task.channels={channels}: must be even, because each frequency has a sine and a cosine")
        self.steps, self.channels = steps, channels
        self.noises, self.times = SampleRNG(seed, "DDPM noise"), SampleRNG(seed, "DDPM time")
        # alpha-bar in the paper; in float64, because in the first steps it is almost 1
        kept = torch.cumprod(1 - noise_added(steps, schedule), 0)
        self.kept: list[float] = kept.tolist()
        self.signal, self.noise = (nn.Buffer(part.sqrt().float(), persistent=False) for part in (kept, 1 - kept))

    def setup(self, model: nn.Module) -> None:
        """Raise ConfigError unless the samples are images (C, H, W)."""
        if len(self.run.input_shape) != 3:
            raise ConfigError(f"task=ddpm: needs images (C, H, W), not data.input_shape={list(self.run.input_shape)}")

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Return the mean squared error of the predicted noise, (B,)."""
        x, number = 2 * batch["x"] - 1, batch["sample_id"]
        noise = self.noises.normal(number, x[0].numel()).view(x.shape)
        time = self.times.below(number, (self.steps,))[:, 0]
        signal, spread = (scale[time].view(-1, 1, 1, 1) for scale in (self.signal, self.noise))
        output = self.predicted(model, signal * x + spread * noise, time)
        return (output - noise).square().flatten(1).mean(1), output

    def predicted(self, model: nn.Module, x: Tensor, time: Tensor) -> Tensor:
        """Return the model's prediction of the noise in x. x: (B, C, H, W); time: (B,), from 0."""
        octave = torch.arange(self.channels // 2, device=x.device)
        angle = math.pi / self.steps * (time[:, None] + 1) * 2**octave
        shown = torch.cat([angle.sin(), angle.cos()], 1)[..., None, None].expand(-1, -1, *x.shape[2:])
        output = model(torch.cat([x, shown.to(x.dtype)], 1)).float()
        if output.numel() != x.numel():
            shapes = f"returns {tuple(output.shape[1:])} for an image {tuple(x.shape[1:])}"
            raise ConfigError(f"model: {shapes}, but must return the same shape - set model.num_outputs")
        return output.view(x.shape)

    def sample(self, model: nn.Module, count: int) -> Tensor:
        """Return `count` images in [0, 1] by algorithm 2 of the paper. As in its code, intermediate images are
        clipped."""
        x = torch.randn(count, *self.run.input_shape, device=self.signal.device)
        for step in reversed(range(self.steps)):
            time = torch.full((count,), step, device=x.device)
            kept, before = self.kept[step], self.kept[step - 1] if step else 1.0
            image = (x - (1 - kept) ** 0.5 * self.predicted(model, x, time)) / kept**0.5
            alpha = kept / before
            mean = before**0.5 * (1 - alpha) * image.clamp(-1, 1) + alpha**0.5 * (1 - before) * x
            x = mean / (1 - kept) + ((1 - alpha) * (1 - before) / (1 - kept)) ** 0.5 * torch.randn_like(x)
        return (x + 1) / 2


def noise_added(steps: int, schedule: str) -> Tensor:
    """Return the variance of the noise that each step adds, (steps,) float64 (beta in the paper)."""
    if schedule == "linear":  # the paper's schedule for 1000 steps; scaled to the same total noise for fewer
        return (torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * 1000 / steps).clamp(max=0.999)
    share = (torch.arange(steps + 1, dtype=torch.float64) / steps + 0.008) / 1.008
    kept = (share * math.pi / 2).cos().square()
    return (1 - kept[1:] / kept[:-1]).clamp(max=0.999)
