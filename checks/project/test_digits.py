"""The digits that come with the project, and the script that makes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import h5py
import numpy as np
import pytest
from common import ROOT

DIGITS = ROOT / "data" / "digits.h5"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_digits", ROOT / "tools" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_splits_are_disjoint_balanced_and_complete() -> None:
    seen: set[bytes] = set()
    with h5py.File(DIGITS) as file:
        assert "CC BY 4.0" in file.attrs["license"]
        assert "Alpaydin" in file.attrs["authors"]
        for split, size in {"train": 1297, "val": 250, "test": 250}.items():
            image, label = file[split]["image"], file[split]["label"]
            assert (image.shape, image.dtype, image.chunks) == ((size, 1, 8, 8), np.uint8, None)
            assert (label.shape, label.dtype, label.chunks) == ((size,), np.int64, None)
            assert list(label.attrs["classes"]) == [str(digit) for digit in range(10)]
            counts = np.bincount(label[:], minlength=10)
            assert counts.max() - counts.min() <= (
                9 if split == "train" else 0
            )  # the set itself has 174 to 183 of each
            images = {one.tobytes() for one in image[:]}
            assert len(images) == size
            assert not images & seen
            seen |= images
            assert image[:].max() == 255
    assert len(seen) == 1797
    assert DIGITS.stat().st_size < 200_000


def test_digits_script_is_reproducible(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 17, (900, 8, 8)), random.permutation(900) % 10
    script = _script()
    for name in ("a.h5", "b.h5"):
        script.write(tmp_path / name, images, labels)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "b.h5"]
    rows = script.splits(labels)
    assert np.array_equal(np.sort(np.concatenate(list(rows.values()))), np.arange(900))


def test_digits_file_is_what_the_script_makes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="the script alone needs scikit-learn")
    digits = datasets.load_digits()
    _script().write(tmp_path / "digits.h5", digits.images, digits.target)
    with h5py.File(DIGITS) as shipped, h5py.File(tmp_path / "digits.h5") as made:
        assert dict(shipped.attrs) == dict(made.attrs)
        for split in ("train", "val", "test"):
            for name in ("image", "label"):
                assert np.array_equal(shipped[split][name], made[split][name])
