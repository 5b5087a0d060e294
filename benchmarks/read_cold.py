"""Batches from a file that is not in the page cache: H5Dataset with advise() ahead against h5py.

    python benchmarks/read_cold.py [folder]     a folder on a disk, not in memory

The file is dropped from the cache before each way (posix_fadvise; Linux). Each way reads a part of it only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from read_common import interleaved, report

from lab.data.h5 import H5Dataset

BATCH, AHEAD = 64, 4


def drop(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def ahead(data: H5Dataset, rows: np.ndarray, advise: bool) -> int:
    out = {"x": torch.empty((BATCH, *data.spec["x"][0]), dtype=torch.uint8)}
    waiting: deque[np.ndarray] = deque()
    for part in rows.reshape(-1, BATCH):
        if advise:
            data.advise(part)
        waiting.append(part)
        if len(waiting) > AHEAD:
            data.gather(waiting.popleft(), out)
    while waiting:
        data.gather(waiting.popleft(), out)
    return rows.size


def compare(folder: Path, title: str, shape: tuple[int, ...], count: int, rows: int, rounds: int = 5) -> None:
    path, row_bytes = folder / "cold.h5", int(np.prod(shape))
    with h5py.File(path, "w") as file:
        dset = file.create_dataset("x", (count, *shape), "u1")
        for k in range(0, count, 1000):
            n = min(1000, count - k)
            dset[k : k + n] = np.random.default_rng(k).integers(0, 256, (n, *shape), dtype=np.uint8)
    data = H5Dataset(str(path), {"x": "x"}, {"all": {"group": "/"}}, "all")

    def random() -> np.ndarray:
        return np.random.permutation(count)[: rows // BATCH * BATCH]

    def blocks() -> np.ndarray:
        """Blocks of 1 MB in random order, shuffled within windows of 64 of them; 8 times as many rows."""
        size, some = max(1, (1 << 20) // row_bytes), min(count, 8 * rows)
        whole = np.random.permutation(count // size)[:, None] * size + np.arange(size)
        parts = [np.random.permutation(whole[k : k + 64].reshape(-1)) for k in range(0, len(whole), 64)]
        chosen = np.concatenate(parts)[:some]
        return chosen[: len(chosen) // BATCH * BATCH]

    def through_h5py() -> int:
        with h5py.File(path) as file:
            held = file["x"]
            chosen = random()
            for row in chosen:
                torch.from_numpy(held[row])
            return chosen.size

    def cold(read: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            drop(path)
            return read()

        return run

    ways = {
        "h5py, random": cold(through_h5py),
        "mapping alone, random": cold(lambda: ahead(data, random(), advise=False)),
        "advise() ahead, random": cold(lambda: ahead(data, random(), advise=True)),
        "advise() ahead, 1 MB blocks": cold(lambda: ahead(data, blocks(), advise=True)),
    }
    report(title, interleaved(ways, rounds), "h5py, random", "samples")
    path.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        compare(Path(name), "cold, 150 KB", (3, 224, 224), 8000, 1024)
        compare(Path(name), "cold, 3 KB", (3, 32, 32), 400_000, 8192)
