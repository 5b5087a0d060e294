"""Rows of a split without an array: exact shares, random rows, memory that does not grow with the file."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pickle
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

import h5rows
from h5rows import dataset
from h5rows.conventions.opening import Opened
from h5rows.integration import reading_once, rows_in_share, shares_of, split_version
from h5rows.reading.shared import once
from h5rows.row_sets import BLOCK, TABLES, RandomShare, rows_of_shards, rows_within
from h5rows.selection import share_of_rows

SHARES = ([0, 0.8, 0.9, 1], [0, 0.013, 0.5, 0.501, 1], [0, 1 / 3, 2 / 3, 1], [0, 1])
FULL = BLOCK * TABLES  # the largest number of rows whose blocks all have their own permutation


def share(size: int, begin: float, end: float, seed: int = 0) -> np.ndarray:
    return np.asarray(share_of_rows(size, [begin, end], "rows", "random", seed))


@pytest.mark.parametrize("by", ["random", "blocks"])
@pytest.mark.parametrize(
    "sizes", [range(1, 51), [BLOCK - 1, BLOCK, BLOCK + 1, 5000], [FULL - 1, FULL + 1, FULL + 4321]]
)
def test_each_row_is_in_one_share_of_the_exact_size(sizes: Any, by: str) -> None:
    for size, bounds in itertools.product(sizes, SHARES):
        parts = [np.asarray(share_of_rows(size, part, "rows", by, 5)) for part in itertools.pairwise(bounds)]
        assert [len(part) for part in parts] == [
            round(b * size) - round(a * size) for a, b in itertools.pairwise(bounds)
        ]
        assert all((np.diff(part) > 0).all() for part in parts)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size)), (size, bounds)


def test_any_positions_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 900, 30_000, FULL + 4321, 10**9 + 7):
        rows = RandomShare(size, size // 20, 3 * size // 4 + 1, 0)
        if size < 10**6:
            positions = rng.integers(0, len(rows), 1000)
            assert np.array_equal(rows[positions], np.asarray(rows)[positions])
        assert len(rows[np.empty(0, np.int64)]) == 0
    begin = len(rows) - 10**5
    last = rows[np.arange(begin, len(rows))]
    assert (np.diff(last) > 0).all()
    assert last[-1] < size
    assert abs((size - last[0]) / 10**5 - 1 / 0.7) < 0.02


def test_rows_of_a_share_never_change() -> None:
    """Otherwise rows of one split would be in another after an update. Version 1 is that of 0.2."""

    def chosen(version: int, size: int, bounds: list[float], seed: int) -> tuple[list[int], int]:
        with split_version(version):
            rows = rows_in_share(None, size, bounds, "rows", "random", seed)
        return rows[:6].tolist(), int(rows.sum())

    assert chosen(1, 5000, [0.7, 1], 7) == ([0, 7, 12, 14, 15, 16], 3738691)
    assert chosen(2, 5000, [0.7, 1], 7) == ([0, 7, 12, 14, 15, 16], 3750135)
    assert chosen(1, 200_000, [0.1, 0.5], 3) == ([0, 2, 5, 7, 11, 19], 7991877662)
    assert chosen(2, 200_000, [0.1, 0.5], 3) == ([0, 5, 9, 10, 12, 16], 8000087689)
    for size in (1, 7, 1000, BLOCK):
        assert chosen(1, size, [0.2, 0.6], 2) == chosen(2, size, [0.2, 0.6], 2)


def z(counts: np.ndarray, expected: float, trials: int) -> float:
    """Return how many standard deviations the chi-square of binomial counts is from its mean."""
    p = expected / trials
    chi = ((counts - expected) ** 2 / (expected * (1 - p))).sum()
    return float((chi - counts.size) / np.sqrt(2 * counts.size))


@pytest.mark.parametrize(("size", "seeds"), [(2500, 600), (FULL + 6 * BLOCK, 60)])
def test_a_share_is_a_random_sample(size: int, seeds: int) -> None:
    """Rows, neighbours, rows of one number in two blocks, and two seeds: as often as chance has it."""
    inside = np.zeros((seeds, size), dtype=bool)
    for seed in range(seeds):
        inside[seed, share(size, 0.4, 0.6, seed)] = True
    p, rows = 0.2, BLOCK if size > FULL else size // 3
    alike = p * (p * rows - 1) / (rows - 1)  # of two rows of one block
    assert abs(z(inside.sum(0), p * seeds, seeds)) < 5
    for step in (1, 2, 64):
        both = inside[:, step:] & inside[:, :-step]
        assert abs(both.mean() - alike) < 5 * np.sqrt(alike / both.size * 2)
        assert abs(z(both.sum(0), alike * seeds, seeds)) < 6
    for blocks in (1, 2, TABLES):  # a block and the one of the same permutation
        if size > blocks * rows:
            both = inside[:, blocks * rows :] & inside[:, : -blocks * rows]
            assert abs(both.mean() - p * p) < 5 * np.sqrt(p * p / both.size * 2), blocks
    assert abs((inside[1:] & inside[:-1]).mean() - p * p) < 5 * np.sqrt(p * p / inside[1:].size)
    assert abs((inside[:, ::BLOCK]).mean() - p) < 5 * np.sqrt(p / inside[:, ::BLOCK].size)


def test_each_block_of_rows_has_its_share() -> None:
    size, blocks = FULL + 4321, TABLES + 5
    edges = np.arange(blocks + 1) * size // blocks
    for bounds in itertools.pairwise([0, 0.013, 0.5, 1]):
        counts = np.histogram(share(size, *bounds), edges - 0.5)[0]
        assert counts.max() - counts.min() <= 2  # one for the share, one for the block's own size


def test_rows_of_files_of_which_some_are_restricted() -> None:
    for kept in ([None, [3, 97, 5], None], [[1], None, []], [[2, 2], [0], [1, 0]], [None, None, [4]]):
        chosen = [range(100) if rows is None else np.array(rows, dtype=np.int64) for rows in kept]
        rows: Any = rows_of_shards(chosen, [0, 100, 200])
        whole = np.concatenate([100 * k + np.asarray(part, dtype=np.int64) for k, part in enumerate(chosen)])
        assert np.array_equal(np.asarray(rows), whole)
        assert np.array_equal(rows[np.arange(len(rows))[::-1]], whole[::-1])
        half = share_of_rows(len(rows), [0, 0.5], "rows")
        assert np.array_equal(np.asarray(rows_within(rows, half)), whole[np.asarray(half)])
    assert rows_of_shards([range(3), range(4)], [0, 3]) is None


def holes(path: Path, rows: int) -> str:
    """Write a file that has all rows and takes no space on the disk."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (rows,), "u1")[-1:] = 1
    return str(path)


@pytest.mark.parametrize("split", ["train", "blocks", "val"])
def test_memory_hardly_grows_with_the_rows(tmp_path: Path, split: str) -> None:
    """Bytes and allocations of opening a share, of a batch and of its copy in a worker, for 10**6 and 10**9 rows: equal
    but for 9 bytes per 1,024 rows of a random share."""
    more = 0 if split == "blocks" else (10**9 - 10**6) // BLOCK
    splits = {**shares_of("80/10/10", "random", "split"), "blocks": {"group": "/", "rows": [0.1, 0.7], "by": "blocks"}}

    def of(rows: int) -> tuple[int, int, int]:
        path = holes(tmp_path / f"{rows}.h5", rows)

        def used() -> int:
            with h5rows.Dataset(path, {"x": "x"}, split, splits) as data:
                positions = np.linspace(0, len(data) - 1, 512).astype(np.int64)
                data.gather(positions)
                assert data.nbytes == len(data)
                return len(pickle.dumps(data._rows))

        used()  # imports, caches
        tracemalloc.start()
        try:
            copied = used()
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return copied, kept, peak

    few, many = of(10**6), of(10**9)
    assert many[0] == pytest.approx(few[0] + 9 * more, rel=0.01)
    assert many[1] < few[1] + 50_000
    assert many[2] < 1.05 * few[2] + 50_000 + 40 * more < 50e6


def test_the_rows_that_are_read_are_those_of_the_share(tmp_path: Path) -> None:
    """Also of several files, of samples of different length, and with rows that are left out."""
    size, paths = 3000, [str(tmp_path / f"{k}.h5") for k in range(3)]
    for k, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["row"] = np.arange(k * size, (k + 1) * size)
            file["a/values"], file["a/offsets"] = np.arange(2 * size), 2 * np.arange(size + 1)
            file["y"] = np.where((np.arange(size) % 7 == 0) & (k == 1), np.nan, 1.0)
    splits = shares_of("80/10/10", None, "split")
    for fields, lost in (({"row": "row", "a": "a"}, []), ({"row": "row", "y": "y"}, size + np.arange(0, size, 7))):
        options: Any = {"decode": True, "missing": {"y": "drop"}} if "y" in fields else {}
        parts = [h5rows.Dataset(paths, fields, split, splits, **options) for split in ("train", "val", "test")]
        left = np.setdiff1d(np.arange(3 * size), lost)
        assert np.array_equal(np.sort(np.concatenate([part.column("row") for part in parts])), left)
        for part, bounds in zip(parts, itertools.pairwise([0, 0.8, 0.9, 1])):
            rows = left[share(len(left), *bounds)]
            assert np.array_equal(part.column("row"), rows)
            assert np.array_equal(part.gather(np.arange(len(part)))["row"].numpy(), rows)
        if "a" in fields:
            assert sum(part.nbytes for part in parts) == 3 * size * (8 + 16)


@pytest.mark.parametrize(("size", "part"), [(10**6, 0.0005), (10**7, 0.0015), (3 * 10**8 + 77, 1e-5)])
@pytest.mark.parametrize("begin", [0.0, 0.6, 1.0])
def test_a_small_share_is_spread_over_the_file(size: int, part: float, begin: float) -> None:
    """Also if it has fewer rows than there are blocks."""
    begin = min(begin, 1 - part)
    rows = np.asarray(RandomShare(size, round(begin * size), round((begin + part) * size), 0))
    tenths = np.bincount(rows * 10 // size, minlength=10)
    assert z(tenths, len(rows) / 10, len(rows)) < 4


def test_a_column_is_read_once_for_all_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `reading_once`: the column of `by`, that of classes, and where values are missing; with the same rows."""
    path, rng = str(tmp_path / "a.h5"), np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["patient"], file["y"] = rng.integers(0, 90, 2000), [f"class {k}" for k in rng.integers(0, 4, 2000)]
        file["x"] = np.where(rng.random(2000) < 0.1, np.nan, 1.0)
    splits, fields = shares_of("80/10/10", "patient", "split"), {"x": "x", "y": "y@classes"}
    reads: list[str] = []

    def counted(owner: Any, name: str) -> None:
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: (reads.append(name), own(*given, **more))[1])

    def rows() -> list[list[tuple[int, int]]]:
        reads.clear()
        opened = [
            h5rows.Dataset(path, fields, split, splits, decode=True, missing={"x": "drop"})
            for split in ("train", "val", "test")
        ]
        return [list(zip(np.asarray(one._rows).tolist(), one.column("y").tolist())) for one in opened]

    for owner, name in ((dataset, "column_of"), (Opened, "_class_codes"), (Opened, "_missing")):
        counted(owner, name)
    alone = rows()
    assert len(reads) == 9
    assert len(set(itertools.chain(*alone))) == sum(map(len, alone)) > 1500
    with reading_once():
        assert rows() == alone
        assert sorted(reads) == ["_class_codes", "_missing", "column_of"]
        with h5py.File(path, "a") as file:
            file["patient"][:100] = 7
        assert rows() != alone  # the file has changed
        assert len(reads) == 3
    rows()
    assert len(reads) == 9


def test_a_column_is_read_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that share a file, also after one was killed while it added what it had read. Types and texts are kept."""
    path, column = str(tmp_path / "a.h5"), [np.array(["a", "bb"]), np.array([0, 1, 1], np.uint8), np.zeros(0, bool)]
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
    made: list[str] = []

    def read(key: str) -> list[np.ndarray]:
        made.append(key)
        return column

    def found(shared: Any, *keys: str) -> None:
        with reading_once(shared):
            for key in keys:
                for own, other in zip(column, once([path], key, partial(read, key), False, "refuse"), strict=True):
                    assert own.dtype == other.dtype
                    assert np.array_equal(own, other)

    (tmp_path / "shared").touch()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(tmp_path / "shared", "r+b", buffering=0)) for _ in range(4)]
        found(files[0], "one")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                found(files[1], "two")
        assert made == ["one", "two"]
        found(files[2], "two", "one")
        found(files[3], "one", "two")
        assert made == ["one", "two", "two"]


def test_processes_wait_until_a_column_that_is_made_of_others_is_read(tmp_path: Path) -> None:
    """Such as `by` with NAME@classes. A process that does not wait would write over the same bytes."""
    path, column = str(tmp_path / "a.h5"), [np.arange(3)]
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
    (tmp_path / "shared").touch()

    def outer() -> list[np.ndarray]:
        once([path], "inner", lambda: column, False, "refuse")
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return column

    with open(tmp_path / "shared", "r+b", buffering=0) as own, open(tmp_path / "shared", "r+b", buffering=0) as other:
        with reading_once(own):
            once([path], "outer", outer, False, "refuse")
        with reading_once(other):
            found = once([path], "outer", Mock(side_effect=AssertionError("read again")), False, "refuse")
    assert np.array_equal(found, column)
