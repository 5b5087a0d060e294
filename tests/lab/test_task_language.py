"""task=language: each token counts alike, for any number of ranks and micro-batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from gpt import NEEDS_GPT
from shipped import Stateless
from torch.nn import functional as F

from samebits.testing import SMALL, start_run, values

pytestmark = NEEDS_GPT
MODEL = ("model.width=16", "model.layers=1", "model.heads=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Counting up modulo 11, in sequences of 2 to 24 tokens: a batch's ranks have very different numbers of them."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("language") / "sequences.h5"
    with h5py.File(path, "w") as file:
        for split, count in (("train", 100), ("val", 33)):
            lengths = random.integers(2, 25, count)
            values = [(random.integers(11) + np.arange(length)) % 11 for length in lengths]
            file[f"{split}/tokens/values"] = np.concatenate(values).astype(np.uint8)
            file[f"{split}/tokens/offsets"] = np.cumsum([0, *lengths])
    return (
        "data=sequences", f"data.path={path}", "data.splits.test=null", "data.input_shape=[24]", "model=gpt", *MODEL,
        "data.order.jitter=1", "task=language", "optim.lr=1e-2",
    )  # fmt: skip


class TestLanguage(Stateless):
    """Token by token: means over each rank's sequences would weigh the tokens of short ones more."""


def test_the_loss_is_the_mean_over_tokens(tmp_path: Path, run: tuple[str, ...]) -> None:
    """Of all tokens of the validation split, scored in uneven batches."""
    from lab import load_run

    folder = start_run(tmp_path / "run", *SMALL, *run, "trainer.keep_best=0", "hardware.eval_batch_size=7")
    model, cfg = load_run(folder)
    total, count = 0.0, 0
    with h5py.File(cfg.data.path) as file, torch.no_grad():
        stored, offsets = file["val/tokens/values"][:].astype(np.int64), file["val/tokens/offsets"][:]
    for begin, end in pairwise(offsets):
        tokens = torch.from_numpy(stored[begin:end])[None]
        total += F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="sum").item()
        count += end - begin - 1
    assert values(folder, "val/loss")[-1] == pytest.approx(total / count, rel=1e-5)
