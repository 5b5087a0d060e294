"""What a split by row numbers costs: opening it, its memory, and reading random rows of it, by the number of rows.

./run python benchmarks/read_splits.py                 # 10**6 to 10**9 rows; version 1 (rules 1 and 2) up to 10**8
./run python benchmarks/read_splits.py --rows 1e5 --field 1e4

Each figure is from a process of its own. The files are holes, which take no space on the disk.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import h5rows
from h5rows.integration import reading_once, shares_of, split_version

BATCHES = (64, 512, 4096)


def memory(name: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3  # type: ignore[index]


def opened(path: str, by: str, version: int) -> dict[str, Any]:
    """Return CPU seconds and MB of opening `train` of 80/10/10, and CPU ns of a row in batches of random rows."""
    splits = shares_of("80/10/10", by, "split")
    whole = h5rows.Dataset(path, {"x": "x"})  # imports
    begin, held, most = time.process_time(), memory("VmRSS"), memory("VmHWM")
    with split_version(version):
        data = h5rows.Dataset(path, {"x": "x"}, "train", splits)
    taken, kept, peak = time.process_time() - begin, memory("VmRSS") - held, memory("VmHWM") - most
    rows = {size: np.random.default_rng(0).integers(0, min(len(data), 10**6), (50, size)) for size in BATCHES}
    costs: dict[int, list[float]] = {}
    for one in (whole, data, whole, data):
        for size, batches in rows.items():
            begin = time.process_time()
            for batch in batches:
                one.gather(batch)
            costs.setdefault(size, []).append((time.process_time() - begin) / batches.size * 1e9)
    return {"s": taken, "kept": kept, "peak": peak, "added": [cost[3] - cost[2] for cost in costs.values()]}


def by_field(path: str) -> dict[str, float]:
    """Return CPU seconds of opening all three splits by a column, each on its own and in reading_once."""
    splits, result = shares_of("80/10/10", "x", "split"), {}
    for name in ("apart", "once"):
        begin = time.process_time()
        if name == "once":
            with reading_once():
                held = [h5rows.Dataset(path, {"x": "x"}, split, splits) for split in splits]
        else:
            held = [h5rows.Dataset(path, {"x": "x"}, split, splits) for split in splits]
        result[name] = time.process_time() - begin
        del held
    return result


def alone(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", *map(str, arguments)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--field", type=float, default=1e7, help="rows of the file that is split by a column")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        path, *more = given.alone
        print(json.dumps(opened(path, more[0], int(more[1])) if more else by_field(path)))
        return
    with tempfile.TemporaryDirectory() as folder:
        print("| rows | split | CPU s | kept | peak above | CPU ns a row more in batches of 64, 512, 4,096 |")
        print("|---|---|---|---|---|---|")
        for count in map(int, given.rows):
            path = Path(folder) / "holes.h5"
            with h5py.File(path, "w") as file:
                file.create_dataset("x", (count, 8), "u1")[-1:] = 1
            for by, version in (("random", 2), ("blocks", 2), ("random", 1)):
                if version == 1 and count > 10**8:
                    continue
                found = alone(path, by, version)
                added = ", ".join(f"{ns:.0f}" for ns in found["added"])
                sizes = f"{found['kept']:.1f} MB | {found['peak']:.1f} MB"
                name = by if version == 2 else f"{by}, version 1"
                print(f"| {count:.0e} | {name} | {found['s']:.3f} | {sizes} | {added} |", flush=True)
        with h5py.File(path, "w") as file:
            file["x"] = np.random.default_rng(0).integers(0, 1000, int(given.field))
        print("\n{apart:.2f} CPU s for three splits by a column, {once:.2f} with reading_once".format(**alone(path)))


if __name__ == "__main__":
    main()
