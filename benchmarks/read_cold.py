"""Batches from a file that is not in the page cache: Dataset with advise() ahead against h5py.

    ./run python benchmarks/read_cold.py [folder] [--quick]     a folder on a disk, not in memory

The file is dropped from the cache before each way (posix_fadvise; Linux). Each way reads a part of it only.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from read_common import arguments, interleaved, report

from h5rows import Dataset

BATCH = 64


def drop(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def ahead(path: Path, rows: np.ndarray, group: int) -> tuple[int, float]:
    """Gather batches; ask for the rows in groups, the next group before the batches of this one. group 0: don't ask."""
    data = Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}})  # anew: what is mapped cannot be dropped
    out = {"x": torch.empty((BATCH, *data.spec["x"][0]), dtype=torch.uint8)}
    asked, began = 0, time.perf_counter()
    for k in range(0, len(rows), BATCH):
        while group and asked < min(k + BATCH + group, len(rows)):
            data.advise(rows[asked : asked + group])
            asked += group
        data.gather(rows[k : k + BATCH], out)
    return len(rows), time.perf_counter() - began


def compare(folder: Path, title: str, shape: tuple[int, ...], count: int, rows: int, rounds: int) -> None:
    path, row_bytes = folder / "cold.h5", int(np.prod(shape))
    with h5py.File(path, "w") as file:
        dset = file.create_dataset("x", (count, *shape), "u1")
        for k in range(0, count, 1000):
            n = min(1000, count - k)
            dset[k : k + n] = np.random.default_rng(k).integers(0, 256, (n, *shape), dtype=np.uint8)

    def random() -> np.ndarray:
        return np.random.permutation(count)[: rows // BATCH * BATCH]

    def blocks() -> np.ndarray:
        """Blocks of 1 MB in random order, rows shuffled within windows of 64 of them; 8 times as many rows."""
        size, some = max(1, (1 << 20) // row_bytes), min(count, 8 * rows)
        whole = np.random.permutation(count // size)[:, None] * size + np.arange(size)
        parts = [np.random.permutation(whole[k : k + 64].reshape(-1)) for k in range(0, len(whole), 64)]
        chosen = np.concatenate(parts)[:some]
        return chosen[: len(chosen) // BATCH * BATCH]

    def through_h5py() -> tuple[int, float]:
        with h5py.File(path) as file:
            held, chosen = file["x"], random()
            began = time.perf_counter()
            for row in chosen:
                torch.from_numpy(held[row])
            return chosen.size, time.perf_counter() - began

    def cold(read: Callable[[], tuple[int, float]]) -> Callable[[], tuple[int, float]]:
        def run() -> tuple[int, float]:
            drop(path)
            return read()

        return run

    ways = {
        "h5py, random": cold(through_h5py),
        "mapping alone, random": cold(lambda: ahead(path, random(), 0)),
        "advise() ahead, random": cold(lambda: ahead(path, random(), 4 * BATCH)),
        "advise() ahead, 1 MB blocks": cold(lambda: ahead(path, blocks(), 64 * max(1, (1 << 20) // row_bytes))),
    }
    report(title, interleaved(ways, rounds), "h5py, random", "samples")
    path.unlink()


if __name__ == "__main__":
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        less, rounds = (16, 1) if args.quick else (1, 5)
        compare(Path(name), "cold, 150 KB", (3, 224, 224), 8000 // less, 1024 // less, rounds)
        compare(Path(name), "cold, 3 KB", (3, 32, 32), 400_000 // less, 8192 // less, rounds)
