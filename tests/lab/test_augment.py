"""TrivialAugment: each change is Pillow's, pixel by pixel, and each image gets one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_transforms import batch_of, test_bitwise_the_same_for_any_split as check_bits
from torch import Tensor

from lab.transforms.augment import BY_LEVEL, KINDS, SIGNED, TrivialAugment
from samebits.compiling import CompiledChain
from samebits.errors import ConfigError

SHARED = {"brightness": "Brightness", "color": "Color", "contrast": "Contrast", "sharpness": "Sharpness"}


def images(size: int = 8) -> Tensor:
    """Noise, smooth, dark, of one colour, and with two values: (size, 3, 37, 45) uint8."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (size, 3, 37, 45), dtype=torch.uint8, generator=random)
    x[1] = (torch.arange(37)[:, None] * 3 + torch.arange(45)).to(torch.uint8)
    x[2] = x[2] // 4 + 20
    x[3] = 7
    x[4] = torch.where(x[4] > 100, 200, 30)
    return x


def by_pillow(image: np.ndarray, kind: str, value: float) -> np.ndarray:
    """(H, W, 3) uint8."""
    pytest.importorskip("PIL")
    from PIL import Image, ImageEnhance, ImageOps

    picture = Image.fromarray(image)
    if kind in SHARED:
        picture = getattr(ImageEnhance, SHARED[kind])(picture).enhance(float(np.float32(1) + np.float32(value)))
    elif kind == "posterize":
        picture = ImageOps.posterize(picture, 8 - int(np.log2(value)))
    elif kind == "solarize":
        picture = ImageOps.solarize(picture, value)
    elif kind in ("autocontrast", "equalize"):
        picture = getattr(ImageOps, kind)(picture)
    elif kind == "rotate":
        picture = picture.rotate(value)
    elif kind != "identity":
        matrix = {
            "shear_x": (1, value, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, value, 1, 0),
            "translate_x": (1, 0, value, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, value),
        }[kind]
        picture = picture.transform(picture.size, Image.Transform.AFFINE, matrix)
    return np.asarray(picture)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_pillow_s(kind: str) -> None:
    x, transform = images(), TrivialAugment("x", 0)
    for level in (0.0, 0.1, 0.5, 0.8, 1.0):
        strength = BY_LEVEL[kind](torch.tensor(level)).item()
        for value in (strength, -strength) if KINDS.index(kind) < SIGNED else (strength,):
            drawn = torch.tensor([[KINDS.index(kind), value]]).expand(len(x), 2)
            found = transform.apply(x, drawn)
            wanted = np.stack([by_pillow(one.permute(1, 2, 0).numpy(), kind, value) for one in x]).transpose(0, 3, 1, 2)
            different = np.abs(found.numpy().astype(int) - wanted)
            if kind == "autocontrast":  # Pillow's products of floats may fall just below a whole number
                assert different.max() <= 1
                assert (different > 0).mean() < 0.05
            elif kind in ("shear_x", "shear_y", "rotate"):  # places just between two pixels
                assert (different > 0).mean() < 0.01
            else:
                assert different.max() == 0
            same = transform.apply(x.float() / 255, drawn)
            assert torch.equal((same * 255).round().to(torch.uint8), found)


def test_each_image_gets_one_change_and_all_come_up() -> None:
    numbers = torch.arange(14_000)
    transform = TrivialAugment("x", 0)
    drawn = transform.prepare(torch.zeros(1, 3, 4, 4), numbers)
    counts = drawn[:, 0].long().bincount(minlength=len(KINDS))
    assert len(counts) == 14
    assert counts.min() > 850
    assert counts.max() < 1150
    for kind, value in enumerate(BY_LEVEL.values()):
        strengths = drawn[drawn[:, 0] == kind, 1]
        levels = value(torch.arange(31) / 30)
        assert set(strengths.abs().tolist()) == set(levels.tolist())
        assert (strengths < 0).any() == (kind < SIGNED)
    x = images(8).repeat(50, 1, 1, 1)
    given = x.clone()
    out = transform({"x": x}, torch.arange(400))["x"]
    assert torch.equal(x, given)
    same = (out == x).flatten(1).all(1)
    assert same[transform.prepare(x, torch.arange(400))[:, 0] == KINDS.index("identity")].all()
    assert 200 < (~same).sum() < 370
    grey = transform({"x": x[:, :1]}, torch.arange(400))["x"]
    assert grey.shape == (400, 1, 37, 45)


def test_an_image_gets_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    makes: Callable[[int], Any] = lambda seed: TrivialAugment("x", seed)  # noqa: E731
    monkeypatch.setitem(check_bits.__globals__["RANDOM"], "augment", makes)
    monkeypatch.setitem(check_bits.__globals__, "batch_of", lambda n: {**batch_of(n), "x": batch_of(n)["x"] / 11_000})
    check_bits("augment")


@pytest.mark.slow
def test_it_is_one_graph_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    real, transform, numbers = torch.compile, TrivialAugment("x", 0), torch.arange(8)
    monkeypatch.setattr(torch, "compile", lambda target: real(target, backend="aot_eager", fullgraph=True))
    torch._dynamo.reset()
    compiled = CompiledChain(transform)
    for _ in range(2):
        numbers = numbers + 8
        assert torch.equal(compiled({"x": images()}, numbers)["x"], transform({"x": images()}, numbers)["x"])


def test_what_is_no_image_is_refused() -> None:
    for x in (torch.zeros(2, 4, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.int32)):
        with pytest.raises(
            ConfigError, match=r"TrivialAugment requires images with one or three channels, uint8 or floats"
        ):
            TrivialAugment("x", 0)({"x": x}, torch.arange(2))
