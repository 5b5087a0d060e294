"""Folds of a cross-validation: each row validates once, classes in equal shares, groups never cut."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5rows
from h5rows import ConfigError
from h5rows.integration import fold_splits
from h5rows.selection import fold_rows


def written(path: Path, size: int = 203, seed: int = 0) -> tuple[str, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels, patients = rng.choice(4, size, p=[0.5, 0.3, 0.15, 0.05]), rng.integers(0, 40, size)
    with h5py.File(path / "a.h5", "w") as file:
        file["row"], file["label"], file["patient"] = np.arange(size), labels, [f"p{k}" for k in patients]
    return str(path / "a.h5"), labels, patients


def rows_of(path: str, split: str, **options: Any) -> list[int]:
    splits = fold_splits({"splits": {"train": {"group": "/"}, "val": None}, **options})
    own = {key: value for key, value in options.items() if not key.startswith("split_")}
    return h5rows.Dataset(path, {"row": "row"}, split, splits, **own).column("row").tolist()


@pytest.mark.parametrize("size", [5, 6, 203, 1000])
@pytest.mark.parametrize("folds", [2, 3, 5])
@pytest.mark.parametrize("repeat", [0, 1, 7])
def test_each_row_is_in_one_fold_and_sizes_differ_by_at_most_one(size: int, folds: int, repeat: int) -> None:
    classes = np.random.default_rng(size).integers(0, 2, size) if size > 100 else None
    for by, of_class in (("random", None), ("random", classes), ("blocks", None)):
        fold = fold_rows(size, folds, 0 if by == "blocks" else repeat, by, None, of_class)
        assert fold.shape == (size,)
        assert set(fold.tolist()) == set(range(folds))
        for part in [fold] if of_class is None else [fold, fold[of_class == 0], fold[of_class == 1]]:
            counts = np.bincount(part, minlength=folds)
            assert counts.max() - counts.min() <= 1
        assert by != "blocks" or (np.diff(fold) >= 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_never_cut_and_the_largest_group_bounds_the_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, folds = int(rng.integers(50, 400)), int(rng.integers(2, 6))
    groups = np.unique(rng.integers(0, rng.integers(2 * folds, 40), size), return_inverse=True)[1]
    fold = fold_rows(size, folds, seed, "patient", groups)
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in range(groups.max() + 1))
    counts = np.bincount(fold, minlength=folds)
    assert counts.min() > 0
    assert counts.max() - counts.min() <= np.bincount(groups).max()


def test_groups_are_stratified_better_than_by_chance() -> None:
    """Each patient has mostly one class; shares of a class differ less between folds than those of random patients."""

    def spread(fold: np.ndarray) -> float:
        shares = [[np.mean(labels[fold == k] == c) for c in range(3)] for k in range(5)]
        return float(np.std(shares, axis=0).sum())

    found, chance = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        patients = rng.integers(0, 60, 600)
        labels = np.where(rng.random(600) < 0.9, patients % 3, rng.integers(0, 3, 600))
        stratified = fold_rows(600, 5, seed, "patient", patients, labels)
        assert all(len(set(stratified[patients == one].tolist())) == 1 for one in set(patients.tolist()))
        found.append(spread(stratified))
        chance.append(spread(fold_rows(600, 5, seed, "patient", patients)))
    assert np.mean(found) < 0.4 * np.mean(chance)


@pytest.mark.parametrize(
    "options", [{}, {"stratify_by": "label"}, {"split_by": "patient"}, {"split_by": "patient", "stratify_by": "label"}]
)
def test_train_and_val_of_all_folds(tmp_path: Path, options: dict[str, str]) -> None:
    """Of a file: val is a fold, train is the rest, the test rows are in none of them, in each repetition."""
    path, labels, patients = written(tmp_path)
    divisions = []
    for repeat in range(2):
        vals = []
        for fold in range(3):
            given = {**options, "folds": 3, "fold": fold, "fold_repeat": repeat, "split_ratio": "75/0/25"}
            train, val, test = (rows_of(path, split, **given) for split in ("train", "val", "test"))
            assert sorted([*train, *val, *test]) == list(range(len(labels)))
            assert train == sorted(train)
            if "split_by" in options:
                of = [set(patients[part].tolist()) for part in (train, val, test)]
                assert sum(map(len, of)) == len(set.union(*of))
            vals.append(val)
        assert sorted(itertools.chain(*vals)) == sorted([*train, *val])
        if options == {"stratify_by": "label"}:
            counts = np.array([np.bincount(labels[val], minlength=4) for val in vals])
            assert (counts.max(0) - counts.min(0) <= 1).all()
        divisions.append(vals)
    assert divisions[0] != divisions[1], "another repetition is another division"


def test_the_division_is_fixed(tmp_path: Path) -> None:
    """Runs of other versions, machines and ranks must have these rows, or their scores are not of the same folds."""
    path, *_ = written(tmp_path, size=20)
    assert rows_of(path, "val", folds=4, fold=1) == [6, 11, 16, 17, 19]
    assert rows_of(path, "val", folds=4, fold=1, fold_repeat=1) == [8, 11, 14, 15, 16]


def test_rows_that_are_dropped_are_in_no_fold(tmp_path: Path) -> None:
    """And rows of a smaller share, and of an index."""
    with h5py.File(path := str(tmp_path / "a.h5"), "w") as file:
        values = np.arange(40, dtype=float)
        values[::4] = np.nan
        file["row"], file["kept"] = values, np.arange(20)
    pool = {"group": "/", "rows": [0, 0.5], "index": "kept"}
    vals = []
    for fold in range(2):
        splits = fold_splits({"splits": {"train": pool}, "folds": 2, "fold": fold})
        given = (path, {"row": "row"}, "val", splits)
        data = h5rows.Dataset(*given, folds=2, fold=fold, decode=True, missing={"row": "drop"})
        vals += data.column("row").tolist()
    assert len(vals) == len(set(vals)) == 8  # half of the 15 of the first 20 rows that have a value
    assert not set(vals) & {*range(0, 40, 4), *range(20, 40)}


def test_shards_are_one_pool(tmp_path: Path) -> None:
    for k in range(3):
        with h5py.File(tmp_path / f"s{k}.h5", "w") as file:
            file["row"], file["patient"] = np.arange(k * 10, k * 10 + 10), (np.arange(k * 10, k * 10 + 10) * 7) % 9
    given = {"folds": 3, "split_by": "patient"}
    vals = [rows_of(str(tmp_path / "s*.h5"), "val", fold=fold, **given) for fold in range(3)]
    assert sorted(itertools.chain(*vals)) == list(range(30))
    of = [{row * 7 % 9 for row in val} for val in vals]
    assert sum(map(len, of)) == 9


WRONG = [
    ({"fold": 1}, r"^fold=1: has no effect without folds; add folds=5, or remove it$"),
    ({"fold_repeat": 1}, r"^fold_repeat=1: has no effect without folds; "),
    ({"stratify_by": "label"}, r"^stratify_by='label': has no effect without folds; "),
    ({"folds": 3}, r"^folds=3: has no effect without fold, the fold to validate on; set fold=0, or "),
    ({"folds": 3, "fold": 3}, r"^fold=3: must be from 0 to 2, because folds=3$"),
    ({"folds": 3, "fold": -1}, r"^fold=-1: must be from 0 to 2, because folds=3$"),
    ({"folds": 1, "fold": 0}, r"^folds=1: must be at least 2$"),
    ({"folds": "five", "fold": 0}, r"^folds='five': must be a whole number$"),
    ({"folds": 3, "fold": True}, r"^fold=True: must be a whole number$"),
    ({"folds": 3, "fold": 0, "fold_repeat": -1}, r"^fold_repeat=-1: must be at least 0$"),
    ({"folds": 3, "fold": 0, "stratify_by": 3}, r"^stratify_by=3: must be the name of a dataset in the file$"),
    ({"folds": 300, "fold": 0}, r"^folds=300: there are only 203 rows$"),
    ({"folds": 50, "fold": 0, "split_by": "patient"}, r"^folds=50: patient has only \d+ different values; "),
    ({"folds": 20, "fold": 0, "stratify_by": "label"},
     r"^stratify_by='label': the class 3 has only \d+ rows, fewer than folds=20; set fewer folds, or remove "),
    ({"folds": 19, "fold": 0, "stratify_by": "label", "split_by": "patient"},
     r"^stratify_by='label': the class 3 has only \d+ values of patient, fewer than folds=19; "),
    ({"folds": 3, "fold": 0, "stratify_by": "labl"}, r"has no 'labl' \(stratify_by\); did you mean 'label'\?"),
    ({"folds": 3, "fold": 0, "split_by": "blocks", "fold_repeat": 1}, r"^fold_repeat=1: has no effect on folds in "),
    ({"folds": 3, "fold": 0, "split_by": "blocks", "stratify_by": "label"}, r"^stratify_by='label': has no effect on "),
    ({"folds": 3, "fold": 0, "split_ratio": "80/20"}, r"split_ratio=80/20: with folds=3 .* write 80/0/20 for 20 % "),
    ({"folds": 3, "fold": 0, "split_ratio": "80/10/10"}, r"split_ratio=80/10/10: with folds=3 each fold is the "),
    ({"folds": 3, "fold": 0, "split_ratio": "80/0/30"}, r"split_ratio=80/0/30: "),
    ({"folds": 3, "fold": 0, "splits": {"train": {"group": "/"}, "val": {"group": "v"}}},
     r"^splits=\{'val': \{'group': 'v'\}\}: with folds=3 each fold is the validation split of a run; "),
    ({"folds": 3, "fold": 0, "split_by": "patient",
      "splits": {"train": {"group": "/", "rows": [0, 0.8]}, "test": {"group": "/", "rows": [0.8, 1]}}},
     r"^split_by='patient': the rows of test would be shuffled in another way, so they could be in a fold; "),
    ({"folds": 3, "fold": 0, "splits": "abc"}, r"^splits=abc: expected a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "line"), WRONG)
def test_a_mistake_is_one_line(tmp_path: Path, options: dict[str, Any], line: str) -> None:
    path, *_ = written(tmp_path)
    with pytest.raises(ConfigError, match=line):
        rows_of(path, "val", **options)


def test_options_that_no_split_reads(tmp_path: Path) -> None:
    path, *_ = written(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^folds=3: has no effect, because no entry of splits has `fold`; write \{'tra"
    ):
        h5rows.Dataset(path, {"row": "row"}, folds=3, fold=0)
    with pytest.raises(ConfigError, match=r"^splits\.val\.fold=val: has no effect without folds; set folds and fold$"):
        h5rows.Dataset(path, {"row": "row"}, "val", {"val": {"group": "/", "fold": "val"}})
    with pytest.raises(ConfigError, match=r"^splits\.val\.fold=first: must be train, val or None$"):
        h5rows.Dataset(path, {"row": "row"}, "val", {"val": {"group": "/", "fold": "first"}}, folds=3, fold=0)


def test_the_splits_of_a_division_can_be_divided_again(tmp_path: Path) -> None:
    """A saved config has them; an experiment that the report writes is composed with them."""
    given = {
        "splits": {"train": {"group": "/"}, "val": None, "test": None},
        "folds": 3,
        "fold": 0,
        "split_by": "patient",
    }
    once = fold_splits(given)
    assert once["val"] == {"group": "/", "by": "patient", "fold": "val"}
    assert fold_splits({**given, "splits": once}) == once


def test_a_row_that_an_index_names_twice_is_refused(tmp_path: Path) -> None:
    path, *_ = written(tmp_path)
    with h5py.File(path, "r+") as file:
        file["twice"] = np.tile(np.arange(50), 2)
    options: dict[str, Any] = {"folds": 3, "fold": 0}
    splits = {"train": {"group": "/", "index": "twice"}, "val": None}
    with pytest.raises(
        ConfigError, match=r"^folds=3: splits\.train\.index has the same row twice, which could be in two"
    ):
        h5rows.Dataset(path, {"row": "row"}, "train", fold_splits({"splits": splits, **options}), **options)


def test_a_column_of_another_length_is_refused(tmp_path: Path) -> None:
    path, *_ = written(tmp_path)
    with h5py.File(path, "r+") as file:
        file["longer"] = np.arange(230) % 3
        file["short/values"], file["short/offsets"] = np.arange(203), np.arange(204)
    with pytest.raises(ConfigError, match=r"^stratify_by=longer: has 230 values in .*, but there are 203 rows$"):
        rows_of(path, "val", folds=3, fold=0, stratify_by="longer")
    with pytest.raises(ConfigError, match=r"^stratify_by=short: has rows of the shape .*must have one value per row$"):
        rows_of(path, "val", folds=3, fold=0, stratify_by="short")
