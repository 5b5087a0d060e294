"""Numbers of classes mean the same names in all data of a run: after a resume, in an evaluation, in an ensemble."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from lab.config import check
from lab.loaders import make_datasets
from lab.predict import Prediction, predict
from lab.restore import score_checkpoint
from samebits.errors import ConfigError
from samebits.testing import compose, resume_run, start_run

QUICK = (
    "logger=none",
    "hardware=cpu",
    "trainer.global_batch_size=8",
    "trainer.max_epochs=1",
    "data.fields.y=y@classes",
)


def written(path: Path, names: str) -> Path:
    """Write a file whose labels are these names, 30 times each, in each split."""
    rng = np.random.default_rng(0)
    labels = np.array(names.split() * 30, dtype="S")
    with h5py.File(path, "w") as file:
        for split in ("train", "val", "test"):
            file[f"{split}/image"] = rng.random((len(labels), 4), dtype=np.float32)
            file[f"{split}/y"] = labels
    return path


def trained(folder: Path, names: str) -> Path:
    return start_run(
        folder / "run", *QUICK, "data.fields.y=y@classes", f"data.path={written(folder / 'train.h5', names)}"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("classes"), "cat dog eel")


@pytest.mark.slow
@pytest.mark.parametrize("names", ["dog eel", "ant bee cat"])
def test_data_with_other_classes_are_refused(run: Path, tmp_path: Path, names: str) -> None:
    path = f"data.path={written(tmp_path / 'other.h5', names)}"
    message = rf"data.fields.y: class 0 is '{names[:3]}' in these data, but 'cat' in {run}/classes.json - write the"
    with pytest.raises(ConfigError, match=message):
        score_checkpoint(run, "test", [path])
    with pytest.raises(ConfigError, match=message):
        predict(Prediction([run], "test", tmp_path / "out.h5", [path], []), None, False)
    assert not (tmp_path / "out.h5").exists()
    predict(Prediction([run], "test", tmp_path / "out.h5", [path, "data.fields.y=null"], []), None, False)


@pytest.mark.slow
def test_data_that_lack_the_last_classes_are_scored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the run's own file has changed, a line says so: the scores are not those of the run."""
    run = trained(tmp_path, "cat dog eel")
    assert score_checkpoint(run, "test", [f"data.path={written(tmp_path / 'fewer.h5', 'cat dog')}"])["loss"] > 0
    assert "differs" not in caplog.text
    written(tmp_path / "train.h5", "cat dog")
    assert score_checkpoint(run, "test", [])["loss"] > 0
    line = rf"data\.path: {tmp_path}/train\.h5 .* differs from the data at the start of the run"
    assert re.search(line, caplog.text)


@pytest.mark.slow
def test_an_ensemble_has_the_same_classes(run: Path, tmp_path: Path) -> None:
    other = trained(tmp_path, "ant bee cat")
    with pytest.raises(ConfigError, match=r"class 0 is 'ant' in .*/best.*, but 'cat' in .*/run/checkpoints/best"):
        predict(Prediction([run, other], "test", tmp_path / "out.h5", [], []), None, False)


@pytest.mark.slow
def test_a_resume_keeps_the_classes(tmp_path: Path) -> None:
    run = trained(tmp_path, "cat dog eel")
    before = (run / "classes.json").read_bytes()
    other = written(tmp_path / "other.h5", "ant bee cat")
    with pytest.raises(ConfigError, match=r"class 0 is 'ant' in these data, but 'cat' in .*/run/classes.json"):
        resume_run(run, data__path=str(other), trainer__max_epochs=2)
    assert (run / "classes.json").read_bytes() == before


def test_a_split_with_the_classes_in_another_order_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", "cat dog")
    with h5py.File(path, "a") as file:
        for split, names in {"train": ["cat", "dog"], "val": ["dog", "cat"], "test": ["cat", "dog"]}.items():
            del file[f"{split}/y"]
            file[f"{split}/y"] = np.arange(60) % 2
            file[f"{split}/y"].attrs["classes"] = names
    options = (f"data.path={path}", "data.fields.y=y", "data.num_outputs=2", "logger=none", "hardware=cpu")
    with pytest.raises(ConfigError, match=r"data.fields.y: class 0 is 'dog' in the split val, but 'cat' in train"):
        make_datasets(check(compose(*options)))
    for more in ("data.splits.val=null", "data.fields.y=null"):
        make_datasets(check(compose(*options, more)))
