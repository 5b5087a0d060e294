"""The average precision of boxes: as pycocotools computes it, with any number of ranks."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.metrics.box_precision import BoxPrecision, overlap
from samebits.errors import ConfigError
from samebits.testing.processes import on_ranks, slow
from samebits.world import World

ONE = World(0, 1, 0, torch.device("cpu"))
COCO = (0.27684618719726717, 0.45577100780566915, 0.2970257923190463)


def drawn_boxes(count: int = 60) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(output, batch): 0 to 4 targets of 3 classes in a sample, boxes near them and elsewhere."""
    random = torch.Generator().manual_seed(0)
    rand = partial(torch.rand, generator=random)
    low, size = rand(count, 4, 2) * 50, rand(count, 4, 2) * 30 + 2
    target = {"boxes": torch.cat([low, low + size], 2), "labels": torch.randint(0, 3, (count, 4), generator=random)}
    target["labels"][rand(count, 4) < 0.4] = -1
    near = target["boxes"] + torch.randn(count, 4, 4, generator=random) * 0.8
    low = rand(count, 2, 2) * 50
    boxes = torch.cat([near, torch.cat([low, low + rand(count, 2, 2) * 30 + 2], 2)], 1)
    boxes[..., 2:] = torch.maximum(boxes[..., 2:], boxes[..., :2] + 0.5)
    labels = torch.cat([target["labels"], torch.randint(0, 3, (count, 2), generator=random)], 1)
    labels[rand(count, 6) < 0.2] = -1
    return {"boxes": boxes, "labels": labels, "scores": rand(count, 6)}, target


def box_score(metric: BoxPrecision, output: Any, batch: Any, world: World = ONE, rows: slice = slice(None)) -> float:
    metric.reset()
    output, batch = ({name: values[rows] for name, values in one.items()} for one in (output, batch))
    for begin in range(0, len(output["scores"]), 7):
        part = slice(begin, begin + 7)
        metric.update(*({name: values[part] for name, values in one.items()} for one in (output, batch)))
    return metric.compute(world)


def test_boxes_have_the_precision_that_coco_computes() -> None:
    """As pycocotools 2.0.11 computes it from the same boxes."""
    output, batch = drawn_boxes()
    for overlaps, expected in (([0.5 + 0.05 * k for k in range(10)], COCO[0]), ([0.5], COCO[1]), ([0.75], COCO[2])):
        assert box_score(BoxPrecision(3, overlaps), output, batch) == pytest.approx(expected, abs=1e-10)


def test_small_cases_of_boxes() -> None:
    boxes = torch.tensor([[[0.0, 0, 4, 4], [10, 10, 14, 14], [0, 0, 4, 3]]])
    target = {"boxes": boxes[:, :2], "labels": torch.tensor([[0, 0]])}
    labels, scores = torch.tensor([[0, 0, 0]]), torch.tensor([[0.9, 0.8, 0.1]])
    assert box_score(BoxPrecision(2), {"boxes": boxes, "labels": labels, "scores": scores}, target) == 1
    # the second box for a target is wrong
    worse = {"boxes": boxes, "labels": labels, "scores": torch.tensor([[0.9, 0.1, 0.8]])}
    assert box_score(BoxPrecision(2), worse, target) == pytest.approx((51 + 50 * 2 / 3) / 101)
    other = {"boxes": boxes, "labels": labels + 1, "scores": scores}
    assert box_score(BoxPrecision(2), other, target) == 0
    nothing = {"boxes": boxes, "labels": torch.full((1, 3), -1), "scores": scores}
    assert box_score(BoxPrecision(2), nothing, target) == 0
    assert math.isnan(box_score(BoxPrecision(2), worse, {"boxes": boxes, "labels": torch.full((1, 3), -1)}))
    assert overlap(boxes[0], boxes[0, 2:])[:, 0].tolist() == [0.75, 0, 1]


@pytest.mark.parametrize("name", ["boxes", "scores"])
def test_the_score_of_a_model_that_has_diverged_is_nan(name: str) -> None:
    output, batch = drawn_boxes()
    output[name].view(-1)[0] = math.nan
    output["labels"][0] = 0
    assert math.isnan(box_score(BoxPrecision(3), output, batch))
    output["labels"][0] = -1  # padding
    assert math.isfinite(box_score(BoxPrecision(3), output, batch))


def test_equal_scores_do_not_depend_on_the_order_of_samples() -> None:
    output, batch = drawn_boxes()
    output["scores"] = (output["scores"] * 4).round()
    back = torch.arange(len(output["scores"])).flip(0)
    turned = [{name: values[back] for name, values in one.items()} for one in (output, batch)]
    assert box_score(BoxPrecision(3), *turned) == box_score(BoxPrecision(3), output, batch)


def test_boxes_that_do_not_fit_are_one_line() -> None:
    output, batch = drawn_boxes(2)
    for change, line in (
        ({"scores": output["scores"][:, :1]}, r"boxes of shape \(2, 6, 4\) and labels of shape \(2, 6\) in the output"),
        (
            {"labels": output["labels"] + 2},
            "^BoxPrecision of 3 classes: labels in the output are not integers from -1 to 2",
        ),
        ({"labels": output["labels"].float()}, "labels in the output are not integers"),
    ):
        with pytest.raises(ConfigError, match=line):
            BoxPrecision(3).update({**output, **change}, batch)
    with pytest.raises(ConfigError, match="overlaps is empty"):
        BoxPrecision(3, [])


@pytest.mark.parametrize("ends", [[11, 40], slow([0, 17, 40])])
def test_ranks_change_no_score(tmp_path: Path, ends: list[int]) -> None:
    def work(world: World, folder: Path) -> None:
        own = slice(ends[world.rank - 1] if world.rank else 0, ends[world.rank])
        output, batch = drawn_boxes(40)
        output["scores"] = (output["scores"] * 8).round()  # with equal scores
        metric = BoxPrecision(3, [0.5, 0.75])
        assert box_score(metric, output, batch, world, own) == box_score(metric, output, batch) > 0.1

    on_ranks(work, tmp_path / "ranks", ranks=len(ends))
