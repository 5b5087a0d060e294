#!/usr/bin/env python3
"""Make data/digits.h5 from the digits in scikit-learn.

    ./run pip install scikit-learn && ./run python tools/make_digits.py [FILE]

Only this script needs scikit-learn, because the file is part of the repository. A second run gives the same bytes (with
the same HDF5 library). Groups train, val, test, each with image (N, 1, 8, 8) uint8 and label (N,) int64, both
contiguous.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import h5py
import numpy as np

SEED = 1797  # seed of the splits
PER_CLASS = {"val": 25, "test": 25}  # images of each class; all others are for training
NUM_CLASSES = 10
LARGEST_PIXEL = 16

ATTRIBUTES = {
    "title": "Optical Recognition of Handwritten Digits",
    "authors": "E. Alpaydin and C. Kaynak",
    "year": 1998,
    "publisher": "UCI Machine Learning Repository",
    "doi": "10.24432/C50P49",
    "license": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
    "source": "the 1,797 images of the original test part (13 writers), as carried by scikit-learn (load_digits)",
    "changes": "pixels 0..16 scaled to 0..255 and rounded; random splits, 25 images of each class in val and in test",
    "made_by": "tools/make_digits.py",
    "split_seed": SEED,
}


def splits(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return {split: rows}, ascending. labels: (N,); equal labels give equal splits."""
    random = np.random.RandomState(SEED)  # numpy guarantees its stream in all versions, unlike that of default_rng
    rows: dict[str, list[np.ndarray]] = {"train": [], **{split: [] for split in PER_CLASS}}
    for label in range(NUM_CLASSES):
        rest = random.permutation(np.flatnonzero(labels == label))
        for split, count in PER_CLASS.items():
            rows[split].append(rest[:count])
            rest = rest[count:]
        rows["train"].append(rest)
    return {split: np.sort(np.concatenate(parts)) for split, parts in rows.items()}


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write the file. images: (N, 8, 8), pixels 0..16. labels: (N,)."""
    pixels = np.rint(images * (255 / LARGEST_PIXEL)).astype(np.uint8)[:, None]
    beside = path.with_name(path.name + ".tmp")
    # aligned, so that a memory map of the labels is aligned too
    with h5py.File(
        beside, "w", libver="v110", track_order=True, alignment_threshold=1024, alignment_interval=64
    ) as file:
        file.attrs.update(ATTRIBUTES)
        for split, rows in splits(labels).items():
            group = file.create_group(split, track_order=True)
            # no time stamps, so that each run writes the same bytes
            group.create_dataset("image", data=pixels[rows], track_times=False)
            label = group.create_dataset("label", data=labels[rows].astype(np.int64), track_times=False)
            label.attrs["classes"] = [str(digit) for digit in range(NUM_CLASSES)]
    os.replace(beside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "data" / "digits.h5"
    parser.add_argument("file", nargs="?", type=Path, default=default, help="where to write (default: data/digits.h5)")
    path = parser.parse_args().file
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        parser.error(f"{error}; pip install scikit-learn")
    digits = load_digits()
    write(path, digits.images, digits.target)
    print(f"{path}: {len(digits.target)} images, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
