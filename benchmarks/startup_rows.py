"""What two training steps cost from the command to its end, by the number of rows of a file that is not in memory.

    ./run python benchmarks/startup_rows.py [--rounds 3] [--written 1e6 3e8] [--holes 1e6 1e9] [--folder FOLDER]

CPU seconds, and MB read from the disk, of the command and its children, in turns. Before each run the file is dropped
from the page cache (posix_fadvise; Linux). FOLDER is on a disk; 3e8 written rows take 2.7 GB of it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np
from startup import TRAIN

STEPS = ["logger=none", "hardware=cpu", "trainer.max_steps=2", "trainer.max_eval_batches=2", "trainer.save_every=null"]
DATA = ["data=h5", "data.fields={x: x, y: y}", "data.split_ratio=80/10/10", "data.num_outputs=10"]
_AT_ONCE = 10**7  # rows


def write(path: Path, rows: int, holes: bool) -> Path:
    """Write rows of 8 bytes and their classes; with holes only the last one, so that the rest takes no space."""
    with h5py.File(path, "w") as file:
        x, y = file.create_dataset("x", (rows, 8), "u1"), file.create_dataset("y", (rows,), "u1")
        for begin in [rows - 1] if holes else range(0, rows, _AT_ONCE):
            rng, count = np.random.default_rng(begin), min(_AT_ONCE, rows - begin)
            x[begin : begin + count] = rng.integers(0, 256, (count, 8), np.uint8)
            y[begin : begin + count] = rng.integers(0, 10, count, np.uint8)
    return path


def cost(path: Path) -> tuple[float, float]:
    """Return (CPU seconds, MB read) of a command on the file."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, *DATA, *STEPS, f"data.path={path}", f"hydra.run.dir={folder}/run"]
        subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, (after.ru_inblock - before.ru_inblock) * 512 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--written", type=float, nargs="*", default=[1e6, 3e8], help="rows of each file")
    parser.add_argument("--holes", type=float, nargs="*", default=[1e6, 1e9], help="rows of each file without data")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary directory)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        files = {
            (kind, count): write(Path(folder) / f"{kind}{count:.0f}.h5", int(count), kind == "holes")
            for kind, counts in (("written", args.written), ("holes", args.holes))
            for count in counts
        }
        found: dict[tuple[str, float], list[tuple[float, float]]] = {key: [] for key in files}
        for _ in range(args.rounds):
            for key, path in files.items():
                found[key].append(cost(path))
    print("| rows | CPU s | / the first of its kind | MB read |\n|---|---|---|---|")
    first: dict[str, float] = {}
    for (kind, count), costs in found.items():
        cpu, read = map(statistics.median, zip(*costs, strict=True))
        ratio = cpu / first.setdefault(kind, cpu)
        print(f"| {count:.0e} {kind} | {cpu:.2f} | {ratio:.2f} | {read:,.0f} |")


if __name__ == "__main__":
    main()
