"""Epochs over a remote file against the same local file: what the first run pays for the fetch, and what later ones do.

    ./run python benchmarks/remote.py [folder] [--megabytes 400] [--rounds 3]   a folder on a disk, for copies and file

A server on this machine, which shares its cores: the fetch is bound by both ends, not by a network. Samples of 150 KB,
a shuffled epoch in batches of 64, files warm. Each round starts with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from remote_blocks import SERVER

from h5rows import Dataset
from h5rows.reading import remote

LATER = 5  # epochs of the local file and of the copy in turns, for each fetch


def epoch(path: str, seed: int) -> tuple[float, float]:
    """Seconds to open the file, as a new process does, and to read all of it once."""
    remote._known.clear()
    began = time.perf_counter()
    data = Dataset(path, {"x": "x"}, "all", {"all": {"group": "/"}})
    rows = np.random.default_rng(seed).permutation(len(data))
    out = {"x": torch.empty((64, *data.spec["x"][0]), dtype=torch.uint8)}
    opened = time.perf_counter()
    for k in range(0, len(rows), 64):
        data.gather(rows[k : k + 64], out)
    return opened - began, time.perf_counter() - opened


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    count, path = args.megabytes * 1_000_000 // (3 * 224 * 224), folder / "set.h5"
    with h5py.File(folder / "first.h5", "w") as file:
        dset = file.create_dataset("x", (count, 3, 224, 224), "u1")
        for k in range(count):
            dset[k] = np.random.default_rng(k).integers(0, 256, (3, 224, 224), dtype=np.uint8)
    with open(folder / "first.h5", "rb") as first, open(path, "wb") as file:
        shutil.copyfileobj(
            first, file, remote.SPAN
        )  # as the fetch writes: the kernel maps what came in large pieces faster
    os.sync()
    serve = [sys.executable, "-c", SERVER, str(folder), "1e12", "0"]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{re.sub('[^0-9]', '', server.stdout.readline())}/set.h5"
    first: list[float] = []
    later: dict[str, list[tuple[float, float]]] = {str(path): [], url: []}
    try:
        for seed in range(args.rounds):
            os.environ[remote.CACHE_DIR] = str(folder / f"cache{seed}")
            epoch(str(path), seed)  # warm
            first.append(sum(epoch(url, seed)))
            for _ in range(LATER):
                for place, found in later.items():
                    found.append(epoch(place, seed))
            shutil.rmtree(folder / f"cache{seed}")
    finally:
        server.kill()
        shutil.rmtree(folder)
    print(f"{count} samples, {args.megabytes} MB, h5py {h5py.__version__}, torch {torch.__version__}; samples/s:")
    local, copy = (count / float(np.median([read for _, read in found])) for found in later.values())
    print(f"local file {local:,.0f}; its copy, in later epochs and runs, {copy:,.0f}: {copy / local:.2f}")
    print(f"first epoch, the fetch with it, {count / np.median(first):,.0f}: {count / np.median(first) / local:.3f}")
    print(", ".join(f"to open {1e3 * np.median([o for o, _ in found]):.1f} ms" for found in later.values()))


if __name__ == "__main__":
    main()
