"""task=segmentation: a label for each pixel."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from common import needs
from shipped import Stateless
from torch.nn import functional as F

from lab.losses.pixel_cross_entropy import PixelCrossEntropy
from lab.models.unet import UNet
from lab.transforms.label_map import LabelMap
from samebits.errors import ConfigError
from samebits.testing import SMALL, scores, start_run

pytestmark = needs("data/digits.h5", "conf/experiment/segmentation.yaml")
RUN = ("experiment=segmentation", "trainer.max_eval_batches=2", "model.levels=2", "model.width=8")


class TestSegmentation(Stateless):
    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


@pytest.mark.slow
def test_masks_of_a_file(tmp_path: Path) -> None:
    """As the yaml says: the classes are counted, the pixels of no class left out; images of odd sides."""
    random = np.random.default_rng(0)
    with h5py.File(tmp_path / "masks.h5", "w") as file:
        for split in ("train", "val"):
            mask = random.integers(0, 2, (40, 1, 1)) * np.tri(9, 11, dtype=np.uint8)
            file[f"{split}/image"] = (200 * mask + random.integers(0, 50, mask.shape))[:, None].astype(np.uint8)
            mask[:, 0] = 255
            file[f"{split}/mask"] = mask.astype(np.uint8)
    run = start_run(
        tmp_path / "run", *SMALL, *RUN, f"data.path={tmp_path}/masks.h5", "data.fields.y=mask",
        "~data.transforms.label_map", "data.splits.test=null", "data.num_outputs=2", "task.criterion.ignore_index=255",
        "trainer.max_steps=40",
    )  # fmt: skip
    assert scores(run)["val/iou"] > 0.9


def test_the_loss_is_that_of_torch() -> None:
    """The mean over each sample's labelled pixels; 0 for a sample that has none."""
    torch.manual_seed(0)
    logits, label = torch.randn(3, 5, 4, 6, requires_grad=True), torch.randint(0, 5, (3, 4, 6))
    torch.testing.assert_close(
        PixelCrossEntropy(None)(logits, {"y": label}),
        torch.stack([F.cross_entropy(logits[k : k + 1], label[k : k + 1]) for k in range(3)]),
    )
    label[0, 1:], label[2] = 9, 9
    found = PixelCrossEntropy(9)(logits, {"y": label.to(torch.uint8)})
    assert found[0].item() == pytest.approx(F.cross_entropy(logits[:1, :, 0], label[:1, 0]).item())
    assert found[2] == 0
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("label", [-100, -1, 5])
def test_no_label_outside_of_the_classes_has_a_loss_of_0(label: int) -> None:
    """-100 is a label that PyTorch's cross_entropy ignores by default."""
    y = torch.zeros(4, 3, dtype=torch.int64)
    y[1] = label
    with pytest.raises(ConfigError, match=rf"batch\['y'\] has .*{label}.* the model has 5 classes"):
        PixelCrossEntropy(None)(torch.randn(4, 5, 3), {"y": y})


def test_label_maps() -> None:
    x = torch.tensor([[[[0.0, 0.3], [0.9, 0.1]]], [[[1.0, 0.0], [0.0, 0.0]]]])
    made = LabelMap("x", "y", 0.25)({"x": x, "y": torch.tensor([3, 0])}, torch.arange(2))
    assert made["y"].tolist() == [[[0, 4], [4, 0]], [[1, 0], [0, 0]]]
    assert LabelMap("x", "y", 0.25)({"x": x}, torch.arange(2)) == {"x": x}


@pytest.mark.parametrize("shape", [[1, 8, 8], [3, 9, 13], [5, 7]])
def test_an_output_for_each_pixel(shape: list[int]) -> None:
    """For images of other sizes too; each pixel of the image can change it nearby."""
    model = UNet(shape, 4, width=4, levels=3)
    x = torch.randn(2, *shape, requires_grad=True)
    out = model(x)
    assert out.shape == (2, 4, *shape[-2:])
    out[0, :, 2, 3].sum().backward()
    assert x.grad is not None
    assert x.grad[0].any()
    assert not x.grad[1].any()
    assert model(torch.randn(2, *shape[:-2], 16, 6)).shape == (2, 4, 16, 6)


@pytest.mark.slow
def test_mistakes(tmp_path: Path) -> None:
    for run, line in (
        ((*RUN[:2], "model=mlp"), r"^PixelCrossEntropy cannot compare logits of shape \(12, 11\) .* model=unet"),
        (
            (*RUN, "data.num_outputs=5"),
            r"^batch\['y'\] has labels from 0 to 10, but the model has 5 classes, 0 to 4",
        ),
        ((*RUN, "model.levels=5"), r"^model\.input_shape=.*: UNet of 5 levels requires images .* of 16 pixels or more"),
        ((*RUN, "data.transforms.label_map.field=z"), r"^data\.transforms: LabelMap\.field='z'; the batch has \['x', "),
    ):
        with pytest.raises(ConfigError, match=line):
            start_run(tmp_path, *SMALL, *run)
