"""Random colours: what Python's colorsys gives, pixel by pixel."""

from __future__ import annotations

import colorsys

import pytest
import torch
from test_transforms import RANDOM, batch_of, test_bitwise_the_same_for_any_split as check_bits

from lab.transforms.color import ColorJitter
from samebits.errors import ConfigError


def test_an_image_gets_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANDOM, "images", lambda seed: ColorJitter("x", 0.4, 0.4, 0.4, 0.1, seed))
    monkeypatch.setitem(check_bits.__globals__, "batch_of", lambda n: {**batch_of(n), "x": batch_of(n)["x"] / 10**4})
    check_bits("images")


def test_colours() -> None:
    """Each change alone, by its factor, against a formula or colorsys, pixel by pixel."""
    torch.manual_seed(0)
    x, numbers = torch.rand(8, 3, 5, 4), torch.arange(8)
    x[0] = x[0, :1]  # grey
    grey = (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])[:, None]
    mean = grey.mean((2, 3), keepdim=True)
    formulas = {0: lambda f: x * f, 1: lambda f: mean + f * (x - mean), 2: lambda f: grey + f * (x - grey)}
    for place, formula in formulas.items():
        amounts = [0.7 if i == place else 0.0 for i in range(3)]
        transform = ColorJitter("x", *amounts, 0.0, 0)
        factor = transform.prepare(x, numbers)[:, place]
        assert 0.3 <= factor.min() < 0.8 < 1.2 < factor.max() <= 1.7
        torch.testing.assert_close(transform({"x": x}, numbers)["x"], formula(factor.view(-1, 1, 1, 1)).clamp(0, 1))
    transform = ColorJitter("x", 0.0, 0.0, 0.0, 0.5, 0)
    turns, out = transform.prepare(x, numbers)[:, 3].tolist(), transform({"x": x}, numbers)["x"]
    for image, turn, found in zip(x, turns, out):
        for pixel, got in zip(image.flatten(1).T.tolist(), found.flatten(1).T.tolist()):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            assert got == pytest.approx(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), abs=1e-5)


def test_integers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ColorJitter requires floats"):
        ColorJitter("x", 0, 0, 0, 0, 0)({"x": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, torch.arange(2))
