"""task=gan: two optimizers, steps that alternate, a gradient of a gradient."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from common import needs

from samebits.checkpoints import load_checkpoint
from samebits.errors import ConfigError
from samebits.testing import SMALL, WAYS, TaskTests, assert_equal, last_checkpoint, metrics, start_run
from samebits.testing.processes import slow

# eps: the gradient of the critic's last bias is zero but for rounding, by which Adam would divide
RUN = (
    "task=gan", "model.input_shape=[4]", "model.num_outputs=64", "model.hidden=[16]", "task.critic.hidden=[16]",
    "task.critic_steps=2", "optim.lr=3e-3", "optim.betas=[0.0,0.9]",
    "+optim.eps=1e-5",
)  # fmt: skip
CRITIC = ("loss", "real", "fake", "penalty", "grad_norm")


@pytest.fixture
def run() -> tuple[str, ...]:
    return RUN


class TestGan(TaskTests):
    loss_names = ("real", "fake")
    logged = (*(f"critic/{name}" for name in CRITIC), "generator/loss", "generator/grad_norm")
    monitor = "critic/penalty"
    ranks = (slow(1), slow(2))


@pytest.mark.slow
def test_the_generator_takes_turns(tmp_path: Path) -> None:
    """It moves in every second step, and its moving average with it; the critic moves in all."""
    run = (*SMALL, *RUN, "trainer.log_every=1", "trainer.save_every=1", "optim/schedule=constant")
    held = {}
    for steps in (2, 4):
        folder = start_run(tmp_path / str(steps), *run, "trainer.ema_decay=0.9", f"trainer.max_steps={steps}")
        for file in (folder / "checkpoints").glob("last_*.pt"):
            payload = load_checkpoint(file)
            held[payload["step"]] = payload
        moved = [line["step"] for line in metrics(folder) if "train/generator/loss" in line]
        assert moved == [step for step in (2, 4) if step <= steps]
    for name, first in held[1]["model"].items():
        second, fourth = held[2]["model"][name], held[4]["model"][name]
        assert torch.equal(held[3]["model"][name], second)
        assert not torch.equal(first, second)
        average = torch.lerp(first, second, 0.1)
        for steps, wanted in {1: first, 2: average, 3: average, 4: torch.lerp(average, fourth, 0.1)}.items():
            torch.testing.assert_close(held[steps]["ema"][name], wanted)
    critics = [held[steps]["task"]["critic.0.weight"] for steps in (1, 2, 3, 4)]
    assert not any(torch.equal(one, other) for one, other in pairwise(critics))


def test_the_penalty_is_that_of_the_paper() -> None:
    """Of a linear critic the gradient is its weight everywhere, so the penalty is known."""
    from lab.tasks.gan import WGAN

    critic, model = torch.nn.Linear(3, 1), torch.nn.Linear(2, 3)
    task = WGAN(critic, [2], 1, 10.0, seed=0, metrics={})
    batch = {"x": torch.randn(5, 3), "sample_id": torch.arange(5)}
    losses, made = task.critic_losses(model, batch)
    wanted = (critic.weight.norm() - 1) ** 2
    torch.testing.assert_close(losses["penalty"], wanted.expand(5))
    torch.testing.assert_close(losses["loss"], (critic(made) - critic(batch["x"]))[:, 0] + 10 * wanted)
    grads = torch.autograd.grad(losses["penalty"].mean(), critic.weight)[0]
    torch.testing.assert_close(grads, 2 * (1 - 1 / critic.weight.norm()) * critic.weight)


@pytest.mark.slow
def test_a_learning_rate_of_its_own_and_what_cannot_be(tmp_path: Path) -> None:
    """optim.lr_factors tells the networks apart by their names."""
    run = (*SMALL, *RUN, "trainer.max_steps=1")
    folder = start_run(tmp_path / "factors", *run, "+optim.lr_factors={critic: 0.5}")
    factors = [group.get("lr_factor", 1.0) for group in last_checkpoint(folder)["optimizer"]["param_groups"]]
    assert factors == [0.5, 0.5, 1, 1]
    for override, line in (
        (
            "model.num_outputs=10",
            "model: generates samples of shape (10,), expected (1, 8, 8), the shape of batch['x']",
        ),
        ("trainer=fsdp", "trainer=fsdp: WGAN has parameters (critic.0"),
        ("+optim.lr_factors={critik: 2.0}", "optim.lr_factors: no "),
    ):
        with pytest.raises(ConfigError, match=re.escape(line)):
            start_run(tmp_path / "run", *run, override)


@pytest.mark.slow
@needs("conf/callback/pictures.yaml")
def test_pictures_are_what_the_task_shows(tmp_path: Path) -> None:
    """Samples of rank 0 alone; the run itself goes on as without them."""
    pytest.importorskip("matplotlib")
    Image = pytest.importorskip("PIL.Image")
    gan = (*SMALL, *RUN, *WAYS["2 ranks"], "trainer.global_batch_size=64")
    gan = (*gan, "trainer.max_steps=4", "trainer.eval_every=2")
    run = start_run(tmp_path / "run", *gan, "callback=pictures", "callback.pictures.count=11")
    pictures = sorted((run / "media/val/generated").iterdir())
    assert [path.name for path in pictures] == ["00000002.png", "00000004.png"]
    images = [np.asarray(Image.open(path)) for path in pictures]
    assert {image.shape for image in images} == {(2 * 8, 8 * 8)}  # eleven of 8 x 8 pixels, eight in a row
    assert all(image[:, :24].any() and not image[8:, 24:].any() for image in images)
    plain = start_run(tmp_path / "plain", *gan)
    assert not (plain / "media").exists()
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(plain)["model"])
