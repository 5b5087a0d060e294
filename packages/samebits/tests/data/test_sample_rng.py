"""Random numbers that are a function of a seed, a name and a sample id."""

from __future__ import annotations

import pytest
import torch

from samebits.data import SampleRNG


def test_draws_are_uniform_and_independent() -> None:
    numbers = torch.arange(1 << 40, (1 << 40) + 100_000)
    draws = SampleRNG(0, "a").uniform(numbers, 4)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert (draws.mean(0) - 0.5).abs().max() < 0.005
    others = [
        SampleRNG(0, "b").uniform(numbers, 2),
        SampleRNG(1, "a").uniform(numbers, 2),
        SampleRNG(0, "a").uniform(numbers + 1, 2),
    ]
    table = torch.cat([draws, *others], 1)
    correlations = torch.corrcoef(table.T) - torch.eye(table.shape[1])
    assert correlations.abs().max() < 0.02
    assert torch.equal(SampleRNG(0, "a").uniform(numbers, 2), draws[:, :2])
    counts = torch.bincount(SampleRNG(5, "c").below(numbers, (7,))[:, 0], minlength=7)
    assert len(counts) == 7
    assert (counts - 100_000 / 7).abs().max() < 600


def test_normal_numbers_are_finite_at_the_ends_of_the_uniform_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 comes once in 2**24 draws: too seldom to be met by drawing, often enough for a long run."""
    drawn = SampleRNG(0, "a").normal(torch.arange(100_000), 2)
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert drawn.pow(power).mean(0).tolist() == pytest.approx([moment] * 2, abs=0.1)
    together = torch.corrcoef(torch.cat([drawn[1:], drawn[:-1]], 1).T)
    assert (together - torch.eye(4)).abs().max() < 0.02
    ends = torch.tensor([0.0, 1 - 2.0**-24])
    monkeypatch.setattr(SampleRNG, "uniform", lambda self, numbers, count: torch.cartesian_prod(ends, ends))
    found = SampleRNG(0, "a").normal(torch.arange(4), 1)
    assert found.isfinite().all()
    assert 5.7 < found.abs().max() < 5.8
