"""docs/pretrained_weights.md as typed, with stand-ins for timm, torchvision and safetensors, which download nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from fork import copy_of_the_project, run_python
from pages import DOCS, OURS, commands, write_files

from samebits.testing import last_checkpoint

pytestmark = pytest.mark.skipif(not OURS, reason="of the template's docs; this project has some of its own")

STAND_IN = """
from collections import OrderedDict

import torch
from torch import nn


def {make}(name, {given}=None, num_classes=1000):
    assert name == "resnet50"
    conv, fc = nn.Conv2d(3, 4, 7, 4), nn.Linear(4, num_classes)
    if {given}:
        nn.init.constant_(conv.weight, 0.25)
        nn.init.constant_(fc.weight, 0.25)
    rest = [("relu", nn.ReLU()), ("pool", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("fc", fc)]
    return nn.Sequential(OrderedDict([("conv1", conv), *rest]))


def list_models():
    return ["resnet50"]
"""
FILES = {
    "timm/__init__.py": STAND_IN.format(make="create_model", given="pretrained"),
    "torchvision/__init__.py": "",
    "torchvision/models.py": STAND_IN.format(make="get_model", given="weights"),
    "safetensors/__init__.py": "",
    "safetensors/torch.py": "import torch\n\n\ndef load_file(name):\n    return torch.load(open(name, 'rb'))\n",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_the_project(tmp_path_factory.mktemp("clone"))
    for name, body in FILES.items():
        (copy / "src" / name).parent.mkdir(exist_ok=True)
        (copy / "src" / name).write_text(body)
    random = np.random.default_rng(0)
    with h5py.File(copy / "photos.h5", "w") as file:
        for split, count in (("train", 24), ("val", 8), ("test", 8)):
            file[f"{split}/image"] = random.integers(0, 255, (count, 3, 16, 16), dtype=np.uint8)
            file[f"{split}/label"] = np.arange(count) % 3
    torch.save({"weight": torch.ones(2)}, copy / "model.safetensors")
    return copy


@pytest.mark.slow
def test_the_page_works_as_typed(clone: Path) -> None:
    page = DOCS["pretrained_weights.md"]
    write_files(page, clone)
    for number, command in enumerate(commands(page)):
        run, script, *words = shlex.split(command)
        assert run == "./run"
        if script == "python":
            run_python(clone, *words)
            continue
        own = (f"hydra.run.dir=outputs/{number}", "logger=none", "trainer.max_epochs=1", "hardware=cpu")
        shown = run_python(clone, f"src/{script}.py", *words, *own)
        assert "fc.weight" in shown.stdout + shown.stderr  # is named as not loaded: the head has 3 outputs
    whole, frozen, renamed = (last_checkpoint(clone / f"outputs/{number}")["model"] for number in (1, 3, 4))
    assert (renamed["conv1.weight"] - 0.25).abs().max() < 0.05
    assert frozen["conv1.weight"].eq(0.25).all()
    assert not whole["conv1.weight"].eq(0.25).all()
    assert (whole["conv1.weight"] - 0.25).abs().max() < 0.01  # it began there
    assert whole["fc.weight"].shape == (3, 4)
    run_python(clone, "convert.py")
    assert torch.load(clone / "converted.pt")["weight"].tolist() == [1, 1]
