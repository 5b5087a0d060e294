"""Shuffled epochs of compressed chunks, warm: Dataset.gather against PyTorch's DataLoader with f['x'][i].

    ./run python benchmarks/read_chunks.py [folder] [--quick]

One 150 KB sample to a chunk, in random order; and 64 samples of 3 KB to a chunk, in windows of 256 chunks. First gzip
by each library that inflates, in one thread and in both.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import torch
from read_common import arguments, images, interleaved, naive_loader, report

from h5rows import Dataset
from h5rows.reading import filters

BATCH = 64
CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "shuffle+gzip+fletcher32": {"compression": "gzip", "compression_opts": 4, "shuffle": True, "fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc lz4": dict(hdf5plugin.Blosc(cname="lz4")),
    "blosc zstd": dict(hdf5plugin.Blosc(cname="zstd")),
}


def gathered(path: Path, order: Callable[[int], np.ndarray], limit: int | None = None) -> Callable[[], int]:
    data = Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}}, cache_mb=256)
    shape, dtype = data.spec["x"]
    out = {"x": torch.empty((BATCH, *shape), dtype=dtype)}

    def epoch() -> int:
        rows = order(len(data))[:limit]
        for k in range(0, len(rows) - BATCH + 1, BATCH):
            data.gather(rows[k : k + BATCH], out)
        return len(rows) // BATCH * BATCH

    epoch()
    return epoch


def windows(count: int, chunk_rows: int = 64, chunks: int = 256) -> np.ndarray:
    """Chunks in random order; in windows of some of them, rows in random order."""
    rng = np.random.default_rng()
    rows = rng.permutation(count // chunk_rows)[:, None] * chunk_rows + np.arange(chunk_rows)
    return np.concatenate([rng.permutation(rows[k : k + chunks].reshape(-1)) for k in range(0, len(rows), chunks)])


def inflating(raws: list[bytes], rounds: int) -> None:
    """Chunks a second by each library, as the filter takes it where those before it are missing."""
    packed, load, gzip = [zlib.compress(raw, 4) for raw in raws], filters._load, ((filters.DEFLATE, (4,)),)

    def one(data: bytes) -> None:
        filters.decode(data, gzip, 0, len(raws[0]))

    def way(lacking: tuple[str, ...], threads: int) -> Callable[[], int]:
        def run() -> int:
            filters._load = lambda name: None if name in lacking else load(name)
            if threads == 1:
                for data in packed:
                    one(data)
            else:
                list(pool.map(one, packed))
            return len(packed)

        return run

    libraries = {"zlib": ("deflate",), "libdeflate": ()}
    with ThreadPoolExecutor(2) as pool:
        ways = {f"{name}, {t} thread(s)": way(lacking, t) for t in (1, 2) for name, lacking in libraries.items()}
        report("inflating 150 KB of 122 KB", interleaved(ways, rounds), "zlib, 1 thread(s)", "chunks")
    filters._load = load


def main(folder: Path, less: int) -> None:
    rounds = -(-5 // less)
    large = list(images(1024 // less))
    inflating([image.tobytes() for image in large[:64]], 3 * rounds)
    for codec, options in CODECS.items():
        path = folder / f"{codec}.h5"  # a new one for each: workers of the last may still hold it locked
        with h5py.File(path, "w") as file:
            dset = file.create_dataset("x", (len(large), 3, 224, 224), "u1", chunks=(1, 3, 224, 224), **options)
            for k, image in enumerate(large):
                dset[k] = image
        ways = {
            "DataLoader, 2 workers, f['x'][i]": naive_loader(str(path), "x", BATCH, 2),
            "Dataset.gather": gathered(path, np.random.permutation),
        }
        rates = interleaved(ways, rounds)
        size = path.stat().st_size / len(large) / 1000
        report(f"150 KB, {codec} ({size:.0f} KB stored)", rates, next(iter(ways)), "samples")
    small = np.stack(list(images(32768 // less, size=32)))
    for codec in ("none", "gzip", "zstd"):
        path = folder / f"small {codec}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=small, chunks=(64, 3, 32, 32), **CODECS[codec])
        ways = {
            "Dataset.gather, truly random, no cache": gathered_random(path),
            "Dataset.gather, windows of 256 chunks": gathered(path, windows),
        }
        report(f"3 KB, 64 to a chunk, {codec}", interleaved(ways, rounds), next(iter(ways)), "samples")


def gathered_random(path: Path) -> Callable[[], int]:
    data = Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}}, cache_mb=0)

    def some() -> int:
        for rows in np.random.permutation(len(data))[: 16 * BATCH].reshape(-1, BATCH):
            data.gather(rows)
        return 16 * BATCH

    return some


if __name__ == "__main__":
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        main(Path(name), 16 if args.quick else 1)
