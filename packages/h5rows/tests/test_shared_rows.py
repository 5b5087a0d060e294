"""Rows that two splits share: as many as both contain, found without a look at rows where arithmetic is enough."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from h5rows import Dataset, selection
from h5rows.integration import split_version
from h5rows.row_sets import RandomShare, count_shared

ENTRIES: list[dict[str, Any]] = [
    {},
    {"rows": [0, 0.8]},
    {"rows": [0.7, 0.9]},
    {"rows": [0.8, 1]},
    {"rows": [0.75, 0.95], "seed": 1},
    {"rows": [0.3, 0.6], "by": "blocks"},
    {"rows": [0, 0.3], "by": "blocks"},
    {"rows": [0, 0.5], "by": "patient"},
    {"rows": [0.5, 1], "by": "patient"},
    {"index": "some"},
    {"index": "some", "rows": [0, 0.5]},
    {"index": "some", "rows": [0.5, 1]},
]


def written(path: Path, size: int, begin: int = 0) -> str:
    """Write a file whose field `row` has another value in each row of all files."""
    rng = np.random.default_rng(begin)
    with h5py.File(path, "w") as file:
        file["row"], file["patient"] = np.arange(begin, begin + size), rng.integers(0, 40, size)
        file["y"] = np.where(np.arange(size) % 7 == 0, np.nan, 1.0)
        file["some"] = rng.integers(0, size, size // 10)  # in no order, and some rows twice
        file["other/row"] = np.arange(size)
    return str(path)


def brute(first: Dataset, second: Dataset) -> int:
    return len(set(first.column("row").tolist()) & set(second.column("row").tolist()))


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(("files", "size"), [(1, 400), (1, 5000), (3, 300), (3, 2000)])
def test_shared_rows_are_those_that_both_splits_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, size: int, drop: bool
) -> None:
    monkeypatch.setattr(selection, "_AN_ARRAY", 500)
    paths = [written(tmp_path / f"{k}.h5", size, k * size) for k in range(files)]
    more: Any = {"decode": True, "missing": {"y": "drop"}} if drop else {}
    splits = {str(k): {"group": "/", **entry} for k, entry in enumerate(ENTRIES)}
    data = [Dataset(paths, {"row": "row", "y": "y"}, split, splits, **more) for split in splits]
    rows = [set(one.column("row").tolist()) for one in data]
    disjoint = 0
    for a, b in itertools.product(range(len(data)), repeat=2):
        assert data[a].shared_rows(data[b]) == len(rows[a] & rows[b]), (ENTRIES[a], ENTRIES[b])
        disjoint += not rows[a] & rows[b]
    assert disjoint >= 6


def test_shares_as_before_0_3_and_folds(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 70_000)
    splits = {"train": {"group": "/", "rows": [0, 0.9]}, "val": {"group": "/", "rows": [0.85, 1]}}
    with split_version(1):
        old = Dataset(path, {"row": "row"}, "val", splits)
    train = Dataset(path, {"row": "row"}, "train", splits)
    assert old.shared_rows(train) == brute(old, train) > 0
    folds = {name: {"group": "/", "rows": [0, 0.9], "fold": name} for name in ("train", "val")}
    parts = [Dataset(path, {"row": "row"}, name, folds, folds=5, fold=2) for name in folds]
    assert parts[0].shared_rows(parts[1]) == 0
    assert sum(part.shared_rows(train) for part in parts) == len(train)


def test_only_rows_of_the_same_datasets_are_shared(tmp_path: Path) -> None:
    a, b, c = (written(tmp_path / f"{name}.h5", 100, begin) for name, begin in (("a", 0), ("b", 100), ("c", 200)))
    link = tmp_path / "link.h5"
    link.symlink_to(a)
    splits = {
        "all": {"group": "/"},
        "early": {"group": "/", "rows": [0, 0.6], "by": "blocks"},
        "else": {"group": "other"},
    }

    def opened(path: Any, split: str = "all", **fields: str) -> Dataset:
        return Dataset(path, fields or {"row": "row"}, split, splits, decode="@" in str(fields))

    for one, other in (
        ([a, b, c], [c, a]),
        ([a, b], [b, a]),
        ([a, b], c),
        (b, [a, b]),
        ([str(link), b], a),
    ):
        assert opened(one).shared_rows(opened(other)) == brute(opened(one), opened(other))
        assert opened(one).shared_rows(opened(other, "early")) == brute(opened(one), opened(other, "early"))
    assert opened([a, str(link)]).shared_rows(opened(a)) == 100  # the rows are there twice
    assert opened(a, "else").shared_rows(opened(a)) == 0
    assert opened(a, "else", row="/row").shared_rows(opened(a)) == 100
    assert opened(a, "else").shared_rows(opened(a, "all", x="other//row")) == 100
    assert opened(a, row="row", y="y").shared_rows(opened(a, x="y")) == 100
    assert opened(a, row="row@classes").shared_rows(opened(a)) == 100


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return [how many rows of random shares are computed from now on]."""
    looked, own = [0], RandomShare.__getitem__

    def counted(self: RandomShare, positions: np.ndarray) -> np.ndarray:
        looked[0] += len(positions)
        return own(self, positions)

    monkeypatch.setattr(RandomShare, "__getitem__", counted)
    return looked


@pytest.mark.parametrize("rows", [10**6, 10**9])
def test_work_and_memory_do_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Shares of one shuffling need no look at rows, and an interval a binary search."""
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", (rows,), "u1")[-1:] = 1  # takes no space on the disk
    splits = {
        "train": {"group": "/", "rows": [0, 0.8]},
        "val": {"group": "/", "rows": [0.8, 0.9]},
        "more": {"group": "/", "rows": [0.7, 0.9]},
        "block": {"group": "/", "rows": [0.5, 0.75], "by": "blocks"},
        "all": {"group": "/"},
    }
    train, val, more, block, whole = (Dataset(str(tmp_path / "a.h5"), {"x": "x"}, split, splits) for split in splits)
    elsewhere = Dataset(str(tmp_path / "b.h5"), {"x": "x"}, "train", splits)
    looked = looked_at(monkeypatch)
    tracemalloc.start()
    try:
        assert (val.shared_rows(train), more.shared_rows(train)) == (0, rows // 10)
        assert whole.shared_rows(block) == rows // 4
        assert elsewhere.shared_rows(train) == 0
        assert looked == [0]
        assert whole.shared_rows(val) == rows // 10
        assert abs(block.shared_rows(train) - rows // 5) <= rows // 1024  # one row of each block of rows
        assert looked[0] <= 4 * 30
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000


def test_few_rows_are_looked_up_in_many_without_reading_these(monkeypatch: pytest.MonkeyPatch) -> None:
    share = RandomShare(10**9, 0, 8 * 10**8, 0)
    inside = share[np.linspace(0, len(share) - 1, 1000).astype(np.int64)]
    looked = looked_at(monkeypatch)
    assert count_shared(inside, share) == count_shared(share, inside) == 1000
    assert looked[0] < 2 * 2 * 1100 * 30
