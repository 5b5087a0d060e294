"""Cross-validation: folds of a run, equal for all seeds and ranks, after a stop and in later evaluations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import QUICK, needs

from lab.config import Config
from lab.loaders import make_datasets
from lab.predict import Prediction, load
from lab.restore import score_checkpoint
from samebits.errors import ConfigError
from samebits.testing import assert_undisturbed, broken_off, compose, metrics, result, start_run

SIZE = 203
STEPS = ("trainer.max_steps=12", "trainer.eval_every=3", "trainer.save_every=4", "trainer.global_batch_size=12")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Rows with their number in the first feature, a label and a patient."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "scans.h5", "w") as made:
        values = rng.normal(size=(SIZE, 4)).astype("float32")
        values[:, 0] = np.arange(SIZE)
        made["image"], made["label"] = values, rng.integers(0, 3, SIZE)
        made["patient"] = [f"p{k}" for k in rng.integers(0, 40, SIZE)]
    return tmp_path / "scans.h5"


def of(file: Path, *more: str) -> tuple[str, ...]:
    folds = ("data.split_ratio=80/0/20", "data.folds=4", "data.stratify_by=label", "data.split_by=patient")
    return (*QUICK, *STEPS, f"data.path={file}", *folds, *more)


def rows(*overrides: str) -> dict[str, list[int]]:
    sets = make_datasets(Config.of(compose(*overrides)))
    return {split: one.gather(np.arange(len(one)))["x"][:, 0].int().tolist() for split, one in sets.items()}


def test_folds_partition_the_training_rows_for_any_seed(file: Path) -> None:
    vals, tests = [], []
    for fold in range(4):
        found = rows(*of(file, f"data.fold={fold}"))
        assert found == rows(*of(file, f"data.fold={fold}", "seed=7")), "seeds within folds are compared by pairs"
        assert sorted(itertools.chain(*found.values())) == list(range(SIZE))
        vals.append(found["val"])
        tests.append(found["test"])
    assert sorted([*itertools.chain(*vals), *tests[0]]) == list(range(SIZE))
    assert tests == tests[:1] * 4
    assert rows(*of(file, "data.fold=0", "data.fold_repeat=1"))["val"] != vals[0]


@pytest.mark.slow
def test_models_of_two_folds_are_averaged_only_for_rows_that_both_have(file: Path, tmp_path: Path) -> None:
    """The validation sets of two folds have equally many rows, but not the same."""
    given = (*QUICK, *STEPS, f"data.path={file}", "data.split_ratio=80/0/20", "data.folds=2", "trainer.max_steps=1")
    runs = [start_run(tmp_path / f"fold{fold}", *given, f"data.fold={fold}") for fold in (0, 1)]
    ensemble = Prediction(runs, "test", tmp_path / "out.h5", [], [])
    load(ensemble, 1)
    with pytest.raises(ConfigError, match=r"its split val has other rows of the data than in .* --split test$"):
        load(replace(ensemble, split="val"), 1)
    load(replace(ensemble, split="val", overrides=["data.fold=1"]), 1)


def test_groups_of_the_file_stay_outside() -> None:
    """The default file has train, val and test: val is unused, test is whole."""
    usual = {split: len(one) for split, one in make_datasets(Config.of(compose(*QUICK, *STEPS))).items()}
    for fold in (0, 4):
        given = (*QUICK, *STEPS, "data.splits.val=null", "data.folds=5", f"data.fold={fold}", "data.split_by=blocks")
        sizes = {split: len(one) for split, one in make_datasets(Config.of(compose(*given))).items()}
        assert sizes["test"] == usual["test"]
        assert sizes["train"] + sizes["val"] == usual["train"]
        assert abs(sizes["val"] - usual["train"] / 5) < 1


@needs("conf/data/mixed.yaml", "src/lab/datasets/mixed.py")
def test_a_part_of_a_mixture_has_folds(file: Path) -> None:
    own = ("path", file), ("split_ratio", "100/0/0"), ("folds", 4), ("fold", 1)
    parts = [f"data.parts.old.{key}={value}" for key, value in own]
    cfg = compose(
        *QUICK, *STEPS, "data=mixed", "+data@data.parts.old=h5", "+data.weights.old=1", *parts, "data.splits.test=null"
    )
    sets = make_datasets(Config.of(cfg))
    assert len(sets["train"]) + len(sets["val"]) == SIZE
    wrong = [text.replace("fold=1", "fold=4") for text in parts]
    with pytest.raises(
        ConfigError, match=r"^data\.parts\.old\.fold=4: must be from 0 to 3, because data\.parts\.old\.folds=4$"
    ):
        compose(*QUICK, *STEPS, "data=mixed", "+data@data.parts.old=h5", "+data.weights.old=1", *wrong)


@pytest.mark.slow
def test_ranks_stops_and_evaluations_have_the_same_fold(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2 and 3 ranks, to rounding; a run that breaks off, bitwise; the scores of the run's fold, and of another."""
    given = of(file, "data.fold=2")
    run = start_run(tmp_path / "run", *given)
    assert_undisturbed(broken_off(tmp_path / "broken", monkeypatch, [10], *given), run)
    scores = {key: value for key, value in result(run).items() if key.startswith(("val/", "test/"))}
    assert len(scores) == 4
    for ranks in (2, 3):
        several = start_run(tmp_path / f"{ranks}", *given, "trainer=ddp", f"hardware.num_procs={ranks}")
        assert {key: result(several)[key] for key in scores} == pytest.approx(scores, rel=1e-3)
        assert metrics(several)[0]["val/loss"] == pytest.approx(metrics(run)[0]["val/loss"], rel=1e-5)
    again = score_checkpoint(run, "val", [])
    assert again["loss"] == pytest.approx(scores["val/loss"])
    assert score_checkpoint(run, "val", ["data.fold=0"])["loss"] != pytest.approx(scores["val/loss"])
