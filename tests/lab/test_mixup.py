"""Mixup: pairs of samples with weights from the beta distribution, the same for any split of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_transforms import RANDOM, batch_of, test_bitwise_the_same_for_any_split as check_bits

from lab.transforms.mixup import Mixup
from samebits.errors import ConfigError


def test_a_sample_gets_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANDOM, "mixup", lambda seed: Mixup("x", "y", 10, 0.4, seed))
    check_bits("mixup")


def test_mixup_mixes_neighbours_with_one_share() -> None:
    numbers = torch.arange(500, 564)
    batch = batch_of(numbers)
    out = Mixup("x", "y", 10, 0.4, 0)(batch, numbers)
    assert torch.allclose(out["y"].sum(1), torch.ones(64))
    for i in range(0, 64, 2):
        share = out["y"][i, batch["y"][i]]
        for a, b in ((i, i + 1), (i + 1, i)):
            assert torch.allclose(out["x"][a], share * batch["x"][a] + (1 - share) * batch["x"][b])
            assert torch.allclose(out["y"][a, batch["y"][b]], 1 - share, atol=1e-6)
    assert len(set(out["y"][::2].max(1).values.tolist())) > 28
    torch.nn.functional.cross_entropy(torch.randn(64, 10), out["y"])
    with pytest.raises(ConfigError, match="micro-batch of 3 samples"):
        Mixup("x", "y", 10, 0.4, 0)(batch_of(numbers[:3]), numbers[:3])
    with pytest.raises(ConfigError, match=r"Mixup got 'x' as torch\.uint8; put ToFloat before it"):
        Mixup("x", "y", 10, 0.4, 0)({**batch, "x": batch["x"].to(torch.uint8)}, numbers)


def test_mixup_takes_labels_of_any_usual_form() -> None:
    numbers = torch.arange(64)
    batch = batch_of(numbers)
    wanted = Mixup("x", "y", 10, 0.4, 0)(batch, numbers)["y"]
    hot = torch.nn.functional.one_hot(batch["y"], 10)
    for y in (batch["y"].to(torch.uint8), batch["y"][:, None], hot, hot.float(), hot.bool()):
        assert torch.equal(Mixup("x", "y", 10, 0.4, 0)({**batch, "y": y}, numbers)["y"], wanted)
    for y in (batch["y"].float(), hot[:, :9], hot[:, None]):
        with pytest.raises(ConfigError, match=r"Mixup.target='y' is .* num_classes=10 probabilities"):
            Mixup("x", "y", 10, 0.4, 0)({**batch, "y": y}, numbers)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 2.0, 32.0, 1000.0])
def test_mixup_shares_follow_their_distribution(alpha: float) -> None:
    numbers = torch.arange(400_000)
    mixed = Mixup("x", "y", 2, alpha, 0)({"x": torch.zeros(400_000, 1), "y": numbers % 2}, numbers)
    shares = mixed["y"][::2, 0].numpy()
    assert abs(shares.mean() - 0.5) < 0.005
    assert abs(shares.var() * 4 * (2 * alpha + 1) - 1) < 0.02
    with pytest.raises(ConfigError, match=rf"^data\.transforms: Mixup\.alpha=-{alpha}: must be > 0"):
        Mixup("x", "y", 2, -alpha, 0)
    reference = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))
    assert np.abs(np.sort(shares) - reference)[200:-200].max() < 0.02  # the outermost 1/4096 is coarser
