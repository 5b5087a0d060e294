"""data=image_folder: the samples of a folder of images, as they are packed, and a run on them."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import needs

from h5rows import pack
from lab.config import Config
from lab.datasets.image_folder import ImageFolder
from lab.loaders import make_dataset
from samebits.errors import ConfigError, RunFailed
from samebits.testing import compose, result, start_run

pytestmark = needs("conf/experiment/image_folder.yaml", "conf/model/resnet.yaml")
Image = pytest.importorskip("PIL.Image")
SIZES = [(12, 9), (20, 30), (8, 8)]  # width, height
SMALL = ("experiment=image_folder", "logger=none", "hardware=cpu", "hardware.num_threads=1", "data.size=[8,8]",
         "data.transforms.crop.padding=1", "data.num_workers=0", "model.width=8")  # fmt: skip


def fill(folder: Path, count: int) -> Path:
    """Images of three sizes, brighter in the channel of their class."""
    random = np.random.default_rng(0)
    for k in range(count):
        width, height = SIZES[k % 3]
        pixels = random.integers(0, 150, (height, width, 3))
        name = ("cat", "dog", "fish")[k % 7 % 3]
        pixels[..., k % 7 % 3] += 100
        place = folder / name / ("more" if k % 5 == 0 else ".")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("data") / "photos", 150)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", ["center", "none"])
def test_its_samples_are_those_that_are_packed(photos: Path, tmp_path: Path, channels: int, crop: str) -> None:
    """Bit for bit, in the same order."""
    mode = {1: "L", 3: "RGB"}[channels]
    pack(photos, tmp_path / "photos.h5", size=(6, 10), crop=crop, mode=mode, quiet=True, workers=1)
    found = ImageFolder(str(photos), [6, 10], crop, channels, {"train": [0, 1]}, "train")  # type: ignore[arg-type]
    with h5py.File(tmp_path / "photos.h5") as file:
        assert len(found) == len(file["image"]) == 150
        for i in range(150):
            np.testing.assert_array_equal(found[i]["x"], file["image"][i])
            assert found[i]["y"] == file["label"][i]
    assert found[0]["x"].shape == (channels, 6, 10)
    assert found.class_names == {"y": ["cat", "dog", "fish"]}


def test_files_of_train_in_another_split_are_counted(photos: Path) -> None:
    splits = {"train": [0, 0.8], "val": [0.7, 0.9], "test": [0.9, 1]}
    train, val, test = (ImageFolder(str(photos), [6, 10], "none", 3, splits, split) for split in splits)
    assert (val.shared_rows(train), test.shared_rows(train)) == (15, 0)


@pytest.mark.slow
def test_the_recipe_learns(photos: Path, tmp_path: Path) -> None:
    steps = ("trainer.max_epochs=null", "trainer.max_steps=20", "trainer.eval_every=20")
    run = start_run(tmp_path / "run", *SMALL, *steps, f"data.path={photos}")
    assert result(run)["test/accuracy"] > 0.8
    assert json.loads((run / "classes.json").read_text()) == {"y": ["cat", "dog", "fish"]}
    assert "samples: train 120, val 15, test 15" in (run / "train.log").read_text()


@pytest.mark.slow
def test_shares_are_disjoint_and_folders_are_splits(tmp_path: Path) -> None:
    fill(tmp_path / "one", 30)
    names = []
    for split in ("train", "val", "test"):
        made = make_dataset(Config.of(compose(*SMALL, f"data.path={tmp_path}/one")), split)
        names.append({made.source.name_of(int(row)) for row in made.rows})
    assert list(map(len, names)) == [24, 3, 3]
    assert len(set.union(*names)) == 30
    fill(tmp_path / "two/train", 12), fill(tmp_path / "two/val", 7)
    cfg = compose(*SMALL, f"data.path={tmp_path}/two", "data.splits.test=null")
    train, val, test = (make_dataset(Config.of(cfg), split) for split in ("train", "val", "test"))
    assert (len(train), len(val), test) == (12, 7, None)
    assert cfg.data.num_outputs == 3
    assert list(cfg.data.input_shape) == [3, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["data.path=nowhere"], "^data.path: .*nowhere does not exist"),
        (["data.splits.val=[0.5,0.2]"], r"^data\.splits\.val=\[0.5, 0.2\]: must be two shares"),
        (["data.splits.val=[0.5,0.501]"], r"^data\.splits\.val: is empty, out of 150 files"),
        (["data.splits.val=0.1"], r"^data\.splits\.val=0\.1: must be two shares, such as \[0\.8, 0\.9\], or null"),
        (["data.splits.val=[a,b]"], r"^data\.splits\.val=.*: must be two shares"),
        (["data.channels=2"], r"^data\.channels=2 .*must be 1, 3 or 4"),
        (["data.path={photos}/cat"], r"^data\.path: .*mixes class folders and files without a class"),
    ],
)
def test_mistakes(photos: Path, tmp_path: Path, options: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        start_run(tmp_path, *SMALL, f"data.path={photos}", *(option.format(photos=photos) for option in options))


@pytest.mark.slow
def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 40)
    (tmp_path / "photos/fish/z.png").write_bytes(b"no image")
    with pytest.raises(RunFailed, match=r"^data: fish/z\.png: is not an image that Pillow can read"):
        start_run(tmp_path / "run", *SMALL, f"data.path={tmp_path}/photos", "trainer.max_epochs=1")


@pytest.mark.slow
def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    fill(tmp_path / "photos/train", 12)
    with pytest.raises(ConfigError, match=r"^data\.splits\.val: .*photos has only the folders train - set it to null"):
        start_run(tmp_path / "run", *SMALL, f"data.path={tmp_path}/photos")
