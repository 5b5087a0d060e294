"""task=ddpm: the paper's loss and sampling, noise that no number of ranks changes, samples of the average."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from common import needs
from shipped import Shipped
from torch import Tensor, nn

from lab import load_run
from lab.predict import Prediction, predict
from lab.tasks.base import TaskRun
from lab.tasks.ddpm import DDPM, noise_added
from samebits.errors import ConfigError
from samebits.testing import SMALL, TaskTests, start_run, values

pytestmark = needs("data/digits.h5")
RUN = ("task=ddpm", "model.input_shape=[11,8,8]", "model.num_outputs=64", "model.hidden=[256]", "task.steps=20",
       "task.channels=10", "optim.lr=3e-3")  # fmt: skip


class TestDDPM(Shipped):
    overfits_to = 0.8  # in so few steps; and nobody can tell all noise from an image
    test_debug_overfit = TaskTests.test_debug_overfit

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


class Knows(nn.Module):
    """The best guess of the noise in images whose pixels, in [-1, 1], are normal around `mean` with `spread`."""

    def __init__(self, steps: int, schedule: str, mean: float, spread: float) -> None:
        super().__init__()
        self.kept = torch.cumprod(1 - noise_added(steps, schedule), 0).float()
        self.mean, self.spread, self.seen = mean, spread, []

    def forward(self, x: Tensor) -> Tensor:
        x, time = x[:, :1], x[0, 1:, 0, 0]
        self.seen.append(time)
        kept = self.kept[len(self.kept) - len(self.seen)]
        return (1 - kept).sqrt() * (x - kept.sqrt() * self.mean) / (kept * self.spread**2 + 1 - kept)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "mean", "spread"), [("cosine", 0.3, 0.0), ("linear", 0.2, 0.15)])
def test_who_knows_the_noise_draws_the_data(schedule: str, mean: float, spread: float) -> None:
    torch.manual_seed(0)
    task, model = DDPM(1000, schedule, 8, seed=0), Knows(1000, schedule, mean, spread)  # type: ignore[arg-type]
    task.run = TaskRun(input_shape=(1, 4, 4))
    samples = 2 * task.sample(model, 500) - 1
    assert samples.shape == (500, 1, 4, 4)
    assert samples.mean().item() == pytest.approx(mean, abs=0.01)
    assert samples.std().item() == pytest.approx(spread, abs=0.01)
    assert len(torch.stack(model.seen).unique(dim=0)) == 1000  # each time is shown as another


def test_samples_are_those_of_a_loop_in_float64() -> None:
    """In the first of 1,000 steps alpha-bar is so near 1 that float32 has three digits of the noise."""
    task = DDPM(1000, "cosine", 2, seed=0)
    task.run = TaskRun(input_shape=(1, 4, 4))
    torch.manual_seed(0)
    drawn = task.sample(lambda x: x[:, :1].tanh() / 2, 8)  # type: ignore[arg-type]
    torch.manual_seed(0)
    beta, x = noise_added(1000, "cosine"), torch.randn(8, 1, 4, 4).double()
    kept = torch.cumprod(1 - beta, 0)
    for t in reversed(range(1000)):
        before = kept[t - 1] if t else torch.ones(())
        image = ((x - (1 - kept[t]).sqrt() * x.tanh() / 2) / kept[t].sqrt()).clamp(-1, 1)
        x = (before.sqrt() * beta[t] * image + (1 - beta[t]).sqrt() * (1 - before) * x) / (1 - kept[t])
        x += (beta[t] * (1 - before) / (1 - kept[t])).sqrt() * torch.randn(8, 1, 4, 4)
    torch.testing.assert_close(drawn.double(), (x + 1) / 2, rtol=0, atol=1e-5)


def test_the_loss_is_the_paper_s() -> None:
    """Algorithm 1, for a model that puts out what it sees: the noise by the schedule, and the time of each sample."""
    task = DDPM(50, "linear", 2, seed=3)
    batch = {"x": torch.rand(4000, 1, 4, 4), "sample_id": torch.arange(4000)}
    seen: list[Tensor] = []
    losses, output = task.losses(lambda x: seen.append(x) or x[:, :1], batch)  # type: ignore
    time = (seen[0][:, 1, 0, 0].asin() * 50 / math.pi).round().long()
    time = torch.where(seen[0][:, 2, 0, 0] < 0, 50 - time, time)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50) * 20, 0)[time - 1].view(-1, 1, 1, 1)
    noise = (output - kept.sqrt() * (2 * batch["x"] - 1)) / (1 - kept).sqrt()
    torch.testing.assert_close(losses, (output - noise).square().mean((1, 2, 3)), rtol=1e-3, atol=1e-3)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.std().item() == pytest.approx(1, abs=0.02)
    assert torch.bincount(time, minlength=51)[1:].min() > 40  # 80 of each


@pytest.mark.slow
def test_samples_at_each_evaluation_and_of_a_trained_run(tmp_path: Path) -> None:
    """They are the averaged weights' and of a fixed seed, and training goes on as if none had been drawn."""
    plain, shown = (
        start_run(tmp_path / name, *SMALL, *RUN, "trainer.ema_decay=0.9", *more)
        for name, more in (("plain", ()), ("shown", ("callback=pictures", "callback.pictures.count=4")))
    )
    assert values(plain, "train/loss") == values(shown, "train/loss")
    pictures = sorted((shown / "media/val/samples").glob("*.png"))
    assert len(pictures) == 3
    trained = load_run(shown)
    assert trained.sample(0).shape == (0, 1, 8, 8)
    torch.manual_seed(0)
    samples = trained.sample(4)
    assert samples.shape == (4, 1, 8, 8)
    from matplotlib.image import imread

    last = torch.from_numpy(imread(pictures[-1]))  # the best weights are the last
    wanted = torch.cat([*samples.clamp(0, 1)[:, 0]], 1)
    torch.testing.assert_close(last.reshape(*last.shape[:2], -1)[:, :32, 0], wanted, atol=0.01, rtol=0)


@pytest.mark.slow
def test_what_does_not_fit(tmp_path: Path) -> None:
    for more, line in (
        (["task.channels=3"], r"task\.channels=3: must be even, because each frequency"),
        (["model.num_outputs=10"], r"model: returns \(10,\) for an image \(1, 8, 8\), .* set model\.num_outputs"),
        (["data=synthetic", "data.input_shape=[4]"], r"needs images \(C, H, W\), not data\.input_shape=\[4\]"),
    ):
        with pytest.raises(ConfigError, match=line):
            start_run(tmp_path / "run", *SMALL, *RUN, *more)


def test_it_has_no_prediction_but_evaluations(tmp_path: Path) -> None:
    """A new run rehearses its evaluation, and what reads a prediction names the remedy."""
    run = start_run(tmp_path / "run", *SMALL, *RUN, "trainer.max_steps=2", "trainer.eval_every=1")
    assert len(values(run, "val/loss")) == 2
    for what in (
        lambda: load_run(run).predict(torch.zeros(2, 8, 8, dtype=torch.uint8).unsqueeze(1)),
        lambda: predict(Prediction([run], "val", tmp_path / "out.h5", [], []), 1, False),
    ):
        with pytest.raises(ConfigError, match=r"^task=ddpm: has no prediction .*load_run\(RUN\)\.sample\(64\)"):
            what()
