"""Images of another size: what torch's own resizing gives, image by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from common import QUICK
from test_transforms import RANDOM, batch_of, test_bitwise_the_same_for_any_split as check_bits
from torch import Tensor
from torch.nn import functional as F

from lab.transforms.fields import RandomCrop
from lab.transforms.sized import CenterCrop, RandomResizedCrop, Resize
from samebits.errors import ConfigError
from samebits.testing import compose, result, start_run

LIKE_INCEPTION = ([0.08, 1.0], [3 / 4, 4 / 3])


def resized(x: Tensor, height: int, width: int) -> Tensor:
    return F.interpolate(x[None], (height, width), mode="bilinear", antialias=True, align_corners=False)[0]


@pytest.mark.parametrize("source", [(37, 52), (24, 24), (9, 100)])
@pytest.mark.parametrize("target", [(24, 28), (64, 60), (3, 5)])
def test_each_part_is_resized_as_torch_does_it(source: tuple[int, int], target: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, numbers = torch.rand(50, 3, *source), torch.arange(50)
    transform = RandomResizedCrop("x", target, *LIKE_INCEPTION, 0)
    parts, out = transform.prepare(x, numbers), transform({"x": x}, numbers)["x"]
    for image, (top, left, rows, columns), found in zip(x, parts.tolist(), out):
        wanted = resized(image[:, top : top + rows, left : left + columns], *target)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)
    whole = Resize("x", target)({"x": x}, numbers)["x"]
    torch.testing.assert_close(whole, torch.stack([resized(image, *target) for image in x]), rtol=1e-5, atol=2e-6)


def test_parts_are_drawn_as_the_paper_says() -> None:
    """Each lies within the image; areas are even between the bounds, ratios on a log scale, places everywhere."""
    x, numbers = torch.zeros(1, 3, 224, 224).expand(20_000, -1, -1, -1), torch.arange(20_000)
    top, left, rows, columns = RandomResizedCrop("x", [8, 8], *LIKE_INCEPTION, 0).prepare(x, numbers).unbind(1)
    assert ((top >= 0) & (left >= 0) & (top + rows <= 224) & (left + columns <= 224)).all()
    area, ratio = rows * columns / 224**2, (columns / rows).log()
    assert area.min() > 0.078
    assert area.max() <= 1
    assert ratio.abs().max() < 0.3
    small = area < 0.5  # of which nearly all fit at the first try
    assert area[small].mean() == pytest.approx(0.29, abs=0.01)
    assert ratio.mean() == pytest.approx(0, abs=0.01)
    assert (top[small] / (224 - rows[small])).mean() == pytest.approx(0.5, abs=0.01)
    assert len(torch.stack([top, left, rows, columns], 1).unique(dim=0)) > 19_000
    wide = torch.zeros(3, 1, 10, 1000)  # nothing of this ratio has half of its area: the largest part, in the middle
    parts = RandomResizedCrop("x", [8, 8], [0.5, 1.0], [0.75, 1.3333], 0).prepare(wide, torch.arange(3))
    assert parts.tolist() == [[0, 494, 10, 13]] * 3


def test_an_image_gets_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANDOM, "images", lambda seed: RandomResizedCrop("x", [8, 6], *LIKE_INCEPTION, seed))
    monkeypatch.setitem(check_bits.__globals__, "batch_of", lambda n: {**batch_of(n), "x": batch_of(n)["x"] / 10**4})
    check_bits("images")


@pytest.mark.parametrize("ratio", [[10, 20], [0.01, 0.02]])
@pytest.mark.parametrize("source", [(5, 5), (1, 9), (9, 1), (1, 1)])
def test_a_part_has_a_pixel_where_no_ratio_fits(source: tuple[int, int], ratio: list[float]) -> None:
    x, numbers = torch.full((4, 1, *source), 0.5), torch.arange(4)
    torch.testing.assert_close(
        RandomResizedCrop("x", [6, 4], [0.08, 1.0], ratio, 0)({"x": x}, numbers)["x"], torch.full((4, 1, 6, 4), 0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision_are_cut_at_whole_pixels(dtype: torch.dtype) -> None:
    """These types hold neither 2,049 nor 257."""
    x, numbers = torch.rand(4, 1, 8, 3000).to(dtype), torch.arange(4)
    for transform in (RandomResizedCrop("x", [8, 64], [0.5, 1.0], [200, 400], 0), Resize("x", [4, 50])):
        wanted = transform({"x": x.float()}, numbers)["x"]
        found = transform({"x": x}, numbers)["x"]
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.01)


def test_a_map_of_labels_goes_along() -> None:
    """Its values stay among those that it had, and lie where the image's do."""
    x = torch.rand(30, 1, 40, 30)
    labels = (x[:, 0] * 7).long()
    same = RandomResizedCrop(["x", "y"], [40, 30], [1.0, 1.0], [0.75, 0.75], 0)({"x": x, "y": labels}, torch.arange(30))
    assert torch.equal(same["y"], labels)
    torch.testing.assert_close(same["x"], x)
    flat = torch.arange(20).view(1, 4, 5)
    assert Resize("y", [2, 10])({"y": flat}, torch.arange(1))["y"][0].tolist() == [
        [5, 5, 6, 6, 7, 7, 8, 8, 9, 9], [15, 15, 16, 16, 17, 17, 18, 18, 19, 19],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "transform",
    [
        RandomResizedCrop(["x", "y"], [4, 4], *LIKE_INCEPTION, 0), CenterCrop(["x", "y"], [4, 4]),
        RandomCrop(["x", "y"], [4, 4], 1, 0),
    ],
)  # fmt: skip
def test_fields_of_unlike_size_are_not_cut_alike(transform: Any) -> None:
    """A map of half the image's size would show another part of it."""
    for side in (4, 16):
        with pytest.raises(ConfigError, match=rf"\.field=\['x', 'y'\]: their sizes are .*\({side}, {side}\)\] pixels"):
            transform({"x": torch.rand(2, 3, 8, 8), "y": torch.zeros(2, side, side)}, torch.arange(2))


def test_mistakes_name_the_transform() -> None:
    numbers, image = torch.arange(2), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    for make, batch, says in (
        (lambda: RandomResizedCrop("x", [8, 8], [0.0, 1.0], [1.0, 1.0], 0), None, "needs area and ratio as"),
        (
            lambda: Resize("x", [4, 4]),
            image,
            r"resizing requires floats, got torch\.uint8; put ToFloat before it",
        ),
        (lambda: CenterCrop("x", [9, 4]), image, r"CenterCrop\.size=\[9, 4\] is larger than the image \[8, 8\]"),
    ):
        with pytest.raises(ConfigError, match=says):
            make()({"x": batch}, numbers)


@pytest.mark.slow
def test_a_run_trains_on_parts_and_scores_the_middle(tmp_path: Any) -> None:
    chosen = "data/transforms=[to_float,resized_crop,center_crop]"
    given = (*QUICK, chosen, "data.transforms.resized_crop.size=[6,6]", "data.transforms.center_crop.size=[6,6]",
             "data.input_shape=[1,6,6]", "model.hidden=[8]", "trainer.max_steps=4")  # fmt: skip
    assert compose(*given).data.transforms.resized_crop.area == [0.08, 1.0]
    assert result(start_run(tmp_path, *given))["step"] == 4
