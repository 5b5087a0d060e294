"""For tests that compare a method with its paper's algorithm, written as a plain PyTorch loop: the run's first weights,
its batches in the order of the file, and the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import torch
from common import ROOT
from torch import Tensor, nn

from lab.config import Config
from lab.model_io import make_model
from samebits.steps import seed_everything
from samebits.testing import compose, last_checkpoint

BATCH = 12
# beside method.SMALL: a rate that stands still, no weight decay, no clipping
PLAIN = (
    "optim=sgd", "optim.lr=0.1", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0",
    "optim/schedule=constant", "optim.schedule.warmup=0", "trainer.clip_norm=null", "trainer.max_steps=5",
    "trainer.eval_every=null", "data.order._target_=samebits.data.order.sequential",
)  # fmt: skip


def first_weights(*overrides: str) -> nn.Module:
    """The model as the run of these overrides begins with it."""
    config = Config.of(compose(*overrides))
    seed_everything(config.seed)
    return make_model(config)


def batches(steps: int = 5) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [0, 1], labels) of the digits' training rows."""
    with h5py.File(ROOT / "data" / "digits.h5") as file:
        x, y = (torch.from_numpy(file["train"][name][: steps * BATCH]) for name in ("image", "label"))
    for x_part, y_part in zip(x.split(BATCH), y.split(BATCH)):
        yield x_part.float() / 255, y_part.long()


def assert_trained(run: Path, model: nn.Module) -> None:
    """The run's last weights are those of `model`, to rounding."""
    torch.testing.assert_close(last_checkpoint(run)["model"], dict(model.state_dict()), rtol=1e-4, atol=1e-6)
