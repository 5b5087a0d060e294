"""Transforms: what they compute, and that randomness depends on (seed, sample number) and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.transforms.fields import (
    Cast,
    ChannelsFirst,
    Cutout,
    Normalize,
    RandomCrop,
    RandomErase,
    RandomFlip,
    ToFloat,
    compose,
)
from samebits.errors import ConfigError

RANDOM: dict[str, Callable[[int], object]] = {
    "flip": lambda seed: RandomFlip("x", -1, seed),
    "crop": lambda seed: RandomCrop("x", [8, 6], 2, seed),
    "cutout": lambda seed: Cutout("x", 3, 0.5, seed),
    "erase": lambda seed: RandomErase("x", 0.5, [0.1, 0.4], [0.3, 3.3], 0.0, seed),
}


def batch_of(numbers: Tensor) -> dict[str, Tensor]:
    """Images that depend on the number only, without zeros."""
    base = torch.arange(1, 3 * 9 * 7 + 1, dtype=torch.float32).view(3, 9, 7)
    return {"x": base + 200 * (numbers % 50).view(-1, 1, 1, 1), "y": numbers % 10}


@pytest.mark.parametrize("name", RANDOM)
def test_bitwise_the_same_for_any_split(name: str) -> None:
    numbers = torch.arange(1000, 1096)
    whole = RANDOM[name](3)(batch_of(numbers), numbers)
    for sizes in ([48, 48], [2, 90, 4], [24] * 4):
        parts = [RANDOM[name](3)(batch_of(part), part) for part in numbers.split(sizes)]
        for field in whole:
            assert torch.equal(torch.cat([part[field] for part in parts]), whole[field])
    again, other = RANDOM[name](3)(batch_of(numbers), numbers), RANDOM[name](4)(batch_of(numbers), numbers)
    assert torch.equal(again["x"], whole["x"])
    assert not torch.equal(other["x"], whole["x"])
    state = torch.get_rng_state()
    RANDOM[name](3)(batch_of(numbers), numbers)
    assert torch.equal(torch.get_rng_state(), state)
    given = batch_of(numbers)
    RANDOM[name](3)(given, numbers)
    assert all(torch.equal(given[field], value) for field, value in batch_of(numbers).items())  # not written to


@pytest.mark.parametrize("name", RANDOM)
def test_fields_of_a_list_are_treated_alike(name: str) -> None:
    numbers = torch.arange(40)
    batch = batch_of(numbers)
    transform = RANDOM[name](1)
    transform.fields = ["x", "mask"]
    labels = (batch["x"] * 4).to(torch.uint16 if name in ("flip", "crop") else torch.int64)
    out = transform({**batch, "mask": labels}, numbers)
    kept = out["x"] != 0.5 if name == "cutout" else torch.ones_like(out["x"]).bool()
    assert torch.equal((out["x"] * 4).long()[kept], out["mask"].long()[kept])


def test_flip() -> None:
    numbers = torch.arange(4000)
    x = batch_of(numbers)["x"]
    out = RandomFlip("x", -1, 0)({"x": x}, numbers)["x"]
    flipped = (out == x.flip(-1)).flatten(1).all(1)
    assert torch.equal(out[~flipped], x[~flipped])
    assert 1850 < flipped.sum() < 2150


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_takes_every_place_equally_often(dtype: torch.dtype) -> None:
    numbers = torch.arange(6000)
    image = torch.arange(1, 64).view(1, 1, 9, 7).to(dtype)
    out = RandomCrop("x", [9, 5], 1, 0)({"x": image.expand(6000, 2, 9, 7)}, numbers)["x"]
    assert out.shape == (6000, 2, 9, 5)
    assert out.dtype == dtype
    padded = torch.nn.functional.pad(image[0, 0], [1] * 4)
    places = {padded[i : i + 9, j : j + 5].numpy().tobytes(): 0 for i in range(3) for j in range(5)}
    for sample in out:
        assert torch.equal(sample[0], sample[1])
        places[sample[0].numpy().tobytes()] += 1
    assert len(places) == 15
    assert all(300 < count < 500 for count in places.values())
    with pytest.raises(
        ConfigError, match=r"RandomCrop\.size=\[20, 5\] is larger than the image \[9, 7\] with padding=1"
    ):
        RandomCrop("x", [20, 5], 1, 0)({"x": image}, numbers[:1])


def test_a_crop_may_show_the_image_mirrored_at_its_edge() -> None:
    numbers, image = torch.arange(600), torch.arange(63.0).view(1, 1, 9, 7)
    out = RandomCrop("x", [9, 7], 2, 0, "reflect")({"x": image.expand(600, 1, 9, 7)}, numbers)["x"]
    padded = np.pad(image[0, 0].numpy(), 2, "reflect")
    places = {padded[i : i + 9, j : j + 7].tobytes() for i in range(5) for j in range(5)}
    assert {sample.numpy().tobytes() for sample in out} == places
    for x in (image.to(torch.uint8), image[..., :2, :2]):
        with pytest.raises(ConfigError, match=r"padding_mode=reflect requires floats .* than padding=2, got torch\."):
            RandomCrop("x", [2, 2], 2, 0, "reflect")({"x": x}, numbers[:1])


def test_cutout_is_a_square_cut_at_the_border() -> None:
    numbers = torch.arange(3000)
    out = Cutout("x", 3, -1.0, 0)({"x": torch.zeros(3000, 2, 9, 7)}, numbers)["x"]
    gone = (out == -1).sum((2, 3))
    assert torch.equal(gone[:, 0], gone[:, 1])
    assert set(gone[:, 0].tolist()) == {4, 6, 9}
    hit = (out[:, 0] == -1).float().mean(0)
    assert hit[1:-1, 1:-1].std() < 0.02  # inner pixels equally often


def test_erase_keeps_to_its_share_of_area() -> None:
    numbers = torch.arange(4000)
    out = RandomErase("x", 0.25, [0.1, 0.2], [0.5, 2.0], 7.0, 0)({"x": torch.zeros(4000, 1, 32, 32)}, numbers)["x"]
    share = (out == 7).float().mean((1, 2, 3))
    erased = share[share > 0]
    assert 900 < len(erased) < 1100
    assert erased.min() > 0.08
    assert erased.max() < 0.22
    rows, columns = (out == 7).any(3).sum(2)[share > 0].float(), (out == 7).any(2).sum(2)[share > 0].float()
    assert torch.equal(rows * columns, erased[:, None] * 1024)  # rectangles
    assert (rows / columns).log().mean().abs() < 0.05
    with pytest.raises(ConfigError, match="RandomErase needs"):
        RandomErase("x", 0.5, [0.2, 0.1], [0.5, 2.0], 0.0, 0)


def test_to_float_normalize_and_channels_first() -> None:
    numbers = torch.arange(2)
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 4, 4)
    out = ToFloat("x")({"x": x}, numbers)
    assert out["x"][0, :, 0, 0].tolist() == pytest.approx([0, 0.2, 1])
    out = Normalize("x", [0.0, 0.2, 0.5], [1.0, 1.0, 0.25])(out, numbers)
    assert out["x"][1, :, 2, 2].tolist() == pytest.approx([0, 0, 2])
    assert Normalize("x", [1.0], [2.0])({"x": torch.tensor([2.0, 5.0])}, numbers)["x"].tolist() == [0.5, 2.0]
    assert ToFloat("x")({"x": torch.tensor([True])}, numbers)["x"].tolist() == [1.0]
    image = torch.rand(4, 5, 6, 3)
    assert torch.equal(ChannelsFirst("x")({"x": image}, numbers)["x"], image.permute(0, 3, 1, 2))
    with pytest.raises(ConfigError, match="ChannelsFirst"):
        ChannelsFirst("x")({"x": image[0]}, numbers)
    for values in (torch.tensor([3, -70_000]), torch.tensor([3.0, -70_000.0], dtype=torch.float64)):
        cast = Cast("x")({"x": values}, numbers)["x"]
        assert cast.dtype == torch.float32
        assert cast.tolist() == [3.0, -70_000.0]
    for dtype in (torch.int32, torch.int64, torch.uint32):
        with pytest.raises(ConfigError, match=r"ToFloat\.field='x' is u?int\d\d, .*lab\.transforms\.fields\.Cast"):
            ToFloat("x")({"x": torch.ones(2, dtype=dtype)}, numbers)
    for pixels in ("images", "integers"):
        with pytest.raises(
            ConfigError, match=r"'x' is complex64: float32 would lose the imaginary parts - .*view_as_real"
        ):
            ToFloat("x", pixels)({"x": torch.ones(2, dtype=torch.complex64)}, numbers)
    for wrong in (
        lambda: Normalize("x", [0.0, 0.0], [1.0, 1.0])({"x": out["x"]}, numbers),
        lambda: Normalize("x", [0.0, 0.0], [1.0, 1.0])({"x": torch.rand(2)}, numbers),
    ):
        with pytest.raises(ConfigError, match="Normalize"):
            wrong()
    with pytest.raises(ConfigError, match="put ToFloat before it"):
        Normalize("x", [0.0], [1.0])({"x": x}, numbers)
    with pytest.raises(ConfigError, match=r"ToFloat.field='z'; the batch has \['x'\]"):
        ToFloat("z")({"x": x}, numbers)


def test_compose_leaves_randomness_out_of_evaluation() -> None:
    numbers = torch.arange(64)
    transforms = [ToFloat("x"), RandomFlip("x", -1, 0)]
    x = torch.arange(64 * 12, dtype=torch.int16).view(64, 1, 3, 4)
    evaluated = compose(transforms, training=False)({"x": x}, numbers)["x"]
    assert torch.equal(evaluated, x.float() / 32767)
    assert not torch.equal(compose(transforms, training=True)({"x": x}, numbers)["x"], evaluated)
    assert compose([RandomFlip("x", -1, 0)], training=False) is None


@pytest.mark.parametrize(("dtype", "exact"), [(torch.int16, True), (torch.int32, False), (torch.int64, False)])
def test_to_float_says_which_integers_it_rounds(dtype: torch.dtype, exact: bool) -> None:
    (line,) = ToFloat("x", "images").describe({"x": ((3,), dtype)})
    assert ("rounded above 2**24" not in line) == exact
    values = torch.tensor([[min(torch.iinfo(dtype).max, 2**24), min(torch.iinfo(dtype).max, 2**24 + 1)]], dtype=dtype)
    converted = ToFloat("x", "images").apply(values, torch.empty(0))
    assert (converted.double() == values.double()).tolist() == [[True, exact]]
