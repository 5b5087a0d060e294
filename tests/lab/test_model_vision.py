"""Models of timm and torchvision by their names, by stand-ins for the libraries; and the recipe that uses one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from common import needs
from torch import nn

from lab.models.vision import vision_model
from samebits.errors import ConfigError
from samebits.testing import last_checkpoint, result, start_run

pytestmark = needs("conf/model/vision.yaml", "conf/experiment/imagenet.yaml")


def small(name: str, num_classes: int, width: int = 4, **options: Any) -> nn.Module:
    assert not options
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 16), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, num_classes),
    )  # fmt: skip


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    models = SimpleNamespace(get_model=small, list_models=lambda: ["resnet50"])
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    timm = SimpleNamespace(create_model=small, list_models=lambda: ["resnet50", "resnet50d"])
    monkeypatch.setitem(sys.modules, "timm", timm)


def test_a_model_by_its_name(libraries: None) -> None:
    for library in ("timm", "torchvision"):
        model: Any = vision_model(library, "resnet50", 7, {"width": 6})  # type: ignore[arg-type]
        assert model[-1].weight.shape == (7, 6)
    with pytest.raises(ConfigError, match=r"model\.name=resnet50d: is not a model of torchvision - did you mean"):
        vision_model("torchvision", "resnet50d", 7, {})
    with pytest.raises(ConfigError, match=r"model\.name=hf-hub:somebody/model: is not a model of timm"):
        vision_model("timm", "hf-hub:somebody/model", 7, {})


@pytest.mark.parametrize("missing", ["timm", "torchvision"])
def test_a_missing_library_is_one_line(libraries: None, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in (missing, f"{missing}.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"model\.library=timm needs {missing}, which is not installed - .*pip inst"):
        vision_model("timm", "resnet50", 7, {})


def test_options_are_numbers(libraries: None) -> None:
    for options in ({"checkpoint_path": "weights.pth"}, {"pretrained_cfg": {"url": "somewhere"}}):
        with pytest.raises(ConfigError, match=r"model\.options\.\w+=.*: must be a number"):
            vision_model("timm", "resnet50", 7, options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three classes of another colour, 256 x 256, as `h5.py pack --size 256` writes them."""
    path, random = tmp_path_factory.mktemp("photos") / "photos.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, count in (("train", 32), ("val", 12)):
            labels = np.arange(count) % 3
            colours = np.eye(3, dtype=np.uint8)[labels] * 128
            noise = random.integers(0, 100, (count, 3, 256, 256), dtype=np.uint8)
            file[f"{split}/image"] = noise + colours[:, :, None, None]
            file[f"{split}/label"] = labels
    return str(path)


@needs("conf/data/transforms/trivial_augment.yaml")
@pytest.mark.slow
def test_the_recipe_learns_in_small(tmp_path: Path, photos: str, libraries: None) -> None:
    run = start_run(
        tmp_path / "run", "experiment=imagenet", f"data.path={photos}", "trainer.max_epochs=8", "optim.lr=0.1",
        "trainer.global_batch_size=16", "logger=none", "hardware=cpu", "hardware.num_threads=1",
        "data/transforms=[to_float,resized_crop,flip,trivial_augment,center_crop,normalize]",
    )  # fmt: skip
    assert result(run)["val/accuracy"] > 0.6  # a guess: 0.33
    assert last_checkpoint(run)["model"]["0.weight"].shape == (4, 3, 7, 7)
