"""Sets of many files: CPU time until the data sets of two splits are ready, descriptors, CPU time of random batches.

./run python benchmarks/read_files.py [folder] [--quick] [--files 3000]

Each size is measured in a process of its own. `equal`: the files have the same shapes and are not compressed. `unlike`:
they have different numbers of rows, and images in gzip.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path

import h5py
import numpy as np
from read_common import parser_of

from h5rows import Dataset
from h5rows.integration import num_outputs, sample_shape

SPLITS = {"train": {"group": "train"}, "val": {"group": "val"}}
BATCHES = (64, 1000, 30_000)
COUNTS = (1, 10, 100, 1000, 3000)


def write(folder: Path, count: int, equal: bool) -> str:
    """Write files with a few rows each, as old as files are when a run starts. Return their pattern."""
    folder.mkdir()
    for k in range(count):
        rng = np.random.default_rng(k)
        with h5py.File(folder / f"{k:05}.h5", "w") as file:
            for split, rows in (("train", 32), ("val", 8)):
                rows += 0 if equal else k % 7
                x = rng.integers(0, 256, (rows, 8, 8)).astype("f4")
                file.create_dataset(f"{split}/x", data=x, **({} if equal else {"chunks": (8, 8, 8), "compression": 4}))
                file[f"{split}/y"] = rng.integers(0, 10, rows)
        os.utime(folder / f"{k:05}.h5", (1e9, 1e9))
    return str(folder / "*.h5")


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def shapes(path: str) -> list[tuple[int, ...]]:
    """Return the shapes of the four fields of a file, by h5py alone: the least that opening a file can cost."""
    with h5py.File(path) as file:
        return [file[f"{split}/{field}"].shape for split in SPLITS for field in ("x", "y")]


def measure(one: str, path: str, rows_read: int, results: object) -> None:
    """Send (CPU s of the probe, of both data sets, of h5py alone, descriptors, us a row of each batch).

    one: a file, opened first."""
    fields = {"x": "x", "y": "y"}
    with Dataset(one, fields, "train", SPLITS) as warm:
        warm.gather(np.arange(8))
    data = {"path": path, "fields": fields, "splits": SPLITS}
    probe = cpu_s(lambda: [(sample_shape(data, "x"), num_outputs(data, "y")) for _ in range(2)])
    sets: list[Dataset] = []
    opened = cpu_s(lambda: sets.extend(Dataset(path, fields, split, SPLITS) for split in SPLITS))
    alone = cpu_s(lambda: [shapes(file) for file in glob(path)])
    open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else -1
    train, rng, us = sets[0], np.random.default_rng(0), []
    train.gather(np.arange(len(train)))  # the pages of all files are mapped
    for size in BATCHES:
        batches = [rng.integers(0, len(train), size) for _ in range(max(1, rows_read // size))]
        seconds = cpu_s(lambda batches=batches: [train.gather(rows) for rows in batches])  # type: ignore[misc]
        us.append(1e6 * seconds / (size * len(batches)))
    results.send((probe, opened, alone, open_files, us))  # type: ignore[attr-defined]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--files", type=int, default=COUNTS[-1], help="the most files (default: %(default)s)")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    print(
        "| files | probe, CPU s | data sets, CPU s | h5py's shapes, CPU s | descriptors | "
        + " | ".join(f"us a row of {b:,}" for b in BATCHES)
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        one = write(Path(folder) / "one", 1, equal=True)
        for equal in (True, False):
            for count in COUNTS[1:2] if args.quick else [count for count in COUNTS if count <= args.files]:
                path = write(Path(folder) / f"{equal}{count}", count, equal)
                receive, send = spawn.Pipe(duplex=False)
                process = spawn.Process(target=measure, args=(one, path, 1000 if args.quick else 100_000, send))
                process.start()
                send.close()  # so that recv ends if the process fails
                probe, opened, alone, open_files, us = receive.recv()
                process.join()
                row = [
                    f"{count:,} {'equal' if equal else 'unlike'}",
                    f"{probe:.3f}",
                    f"{opened:.3f}",
                    f"{alone:.3f}",
                    f"{open_files:,}",
                ]
                print(f"| {' | '.join([*row, *(f'{value:.2f}' for value in us)])} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
