"""Samples of different length, from a file to a trained model: what is padded must not count."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from common import QUICK, needs

from lab.datasets.tokens import NextToken, PaddedNextToken
from lab.losses.next_token import NextToken as Loss
from samebits.errors import ConfigError
from samebits.testing import result, start_run

GPT = pytest.importorskip("lab.models.gpt").GPT
NUMBERS = torch.arange(3)


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(sample) for sample in samples])
    tokens = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True) if samples else torch.empty(0, 0)
    return {"tokens": tokens.to(torch.uint8), "tokens_length": lengths}


def test_losses_of_padded_samples_are_those_of_each_alone() -> None:
    torch.manual_seed(0)
    model, loss = GPT([12], 20, 16, 2, 2, 0.0).eval(), Loss()
    samples = [torch.randint(0, 20, (length,)) for length in (12, 2, 7)]
    batch = PaddedNextToken("tokens", 12)(padded(samples), NUMBERS)
    assert set(batch) == {"x", "y"}
    together = loss(model(batch["x"]), batch)
    for k, sample in enumerate(samples):
        alone = NextToken("tokens")({"tokens": sample[None]}, NUMBERS)
        assert torch.allclose(together[k], loss(model(alone["x"]), alone)[0], atol=1e-6)


def test_long_short_and_empty_samples() -> None:
    samples = [torch.arange(9), torch.tensor([4]), torch.tensor([], dtype=torch.int64)]
    batch = PaddedNextToken("tokens", 5)(padded(samples), NUMBERS)
    assert batch["x"].tolist() == [[0, 1, 2, 3, 4], [4, 0, 0, 0, 0], [0] * 5]
    assert batch["y"].tolist() == [[1, 2, 3, 4, 5], [-100] * 5, [-100] * 5]
    losses = Loss()(torch.randn(3, 5, 10), batch)
    assert losses[0] > 0
    assert losses[1:].tolist() == [0, 0]
    one = PaddedNextToken("tokens", 5)(padded([torch.tensor([4])] * 3), NUMBERS)
    assert one["x"].shape == one["y"].shape == (3, 1)
    with pytest.raises(ConfigError, match="data=sequences"):
        PaddedNextToken("tokens", 5)({"tokens": torch.zeros(3, 6)}, NUMBERS)
    with pytest.raises(ConfigError, match=r"6 tokens, but has positions for 5"):
        GPT([5], 10, 8, 2, 1, 0.0)(torch.zeros(1, 6, dtype=torch.int64))


@pytest.mark.slow
@needs("conf/experiment/sequences.yaml")
def test_the_shipped_experiment_learns(tmp_path: Path) -> None:
    """Counting up modulo 17 from a random begin; the file as `h5.py pack --variable` writes it."""
    random = np.random.default_rng(0)
    path = tmp_path / "sequences.h5"
    with h5py.File(path, "w") as file:
        for split, count in (("train", 400), ("val", 40)):
            lengths = random.integers(2, 30, count)
            values = [(random.integers(17) + np.arange(length)) % 17 for length in lengths]
            file[f"{split}/x/values"] = np.concatenate(values).astype(np.uint8)
            file[f"{split}/x/offsets"] = np.cumsum([0, *lengths])
    small = ["model.width=32", "model.layers=1", "trainer.max_epochs=null", "trainer.max_steps=60", "optim.lr=1e-2"]
    quick = [option for option in QUICK if "model." not in option and "max_epochs" not in option]
    source = [f"data.path={path}", "data.fields.tokens=x", "data.input_shape=[32]", "data.splits.test=null"]
    run = start_run(tmp_path / "run", "experiment=sequences", *source, *small, *quick)
    assert result(run)["val/loss"] < 0.5  # a guess: 2.8
