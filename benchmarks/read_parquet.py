"""Read a folder of Parquet in random order: data=parquet and data=huggingface beside `datasets` and a DataLoader.

    ./run python benchmarks/read_parquet.py --rows 400000 --rounds 5

Ways take turns in one run; medians of rows per second. Each reads batches of an epoch as tensors in this process.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from lab.datasets.parquet import Parquet, row_groups
from samebits.data import TrainPlan, shuffled

BATCH, FILES, GROUP, WIDTH = 256, 4, 8192, 64


def write(folder: Path, rows: int) -> None:
    """Rows of 64 float32 in a list, and a label."""
    rng = np.random.default_rng(0)
    for k in range(FILES):
        values = rng.normal(size=(rows // FILES, WIDTH)).astype("f4")
        table = {"x": pa.FixedSizeListArray.from_arrays(values.ravel(), WIDTH), "y": rng.integers(0, 9, len(values))}
        pq.write_table(pa.table(table), folder / f"{k}.parquet", row_group_size=GROUP)


def ours(dataset: Any, order: Any) -> Callable[[], Iterator[Any]]:
    """Return a function that yields the batches of the next epoch, made in this thread."""
    plan, steps, begun = TrainPlan(order, BATCH, [BATCH], 0, 1, 0), len(dataset) // BATCH, itertools.count()

    def epoch() -> Iterator[Any]:
        begin = next(begun) * steps
        return (dataset.gather(plan(step)[1]) for step in range(begin, begin + steps))

    return epoch


def batches_of(size: int) -> list[list[int]]:
    """Return the row numbers of shuffled batches."""
    rows = np.random.default_rng(0).permutation(size)[: size // BATCH * BATCH]
    return rows.reshape(-1, BATCH).tolist()  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=float, default=5.0, help="seconds of a way in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        folder.mkdir()
        write(folder, options.rows)
        measure(folder, options.rounds, options.most)


def measure(folder: Path, rounds: int, most: float) -> None:
    import datasets

    from lab.datasets.huggingface import HuggingFace

    datasets.disable_progress_bars()
    fields, splits = {"x": "x", "y": "y"}, {"train": {"of": "train"}}
    arrow = datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))["train"]
    arrow.save_to_disk(str(folder.parent / "saved"))
    kept = Parquet(str(folder), fields, {"train": {}}, "train")
    bounded = Parquet(str(folder), fields, {"train": {}}, "train", cache_mb=64)
    mapped = HuggingFace(str(folder.parent / "saved"), fields, splits, "train")
    tensors = arrow.with_format("torch")
    stream = datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "cache"), streaming=True)["train"]
    stream = stream.with_format("torch").shuffle(seed=0, buffer_size=4 * GROUP)
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "parquet, row groups kept": ours(kept, row_groups(kept, 0, BATCH)),
        "parquet, cache of 64 MB": ours(bounded, row_groups(bounded, 0, BATCH, window=8)),
        "huggingface": ours(mapped, shuffled(mapped, 0)),
        "datasets, batches of rows": lambda: (tensors[rows] for rows in batches_of(len(tensors))),
        "DataLoader(datasets)": lambda: iter(DataLoader(tensors, BATCH, shuffle=True, drop_last=True)),
        "DataLoader(datasets), 2 workers": lambda: iter(
            DataLoader(tensors, BATCH, shuffle=True, drop_last=True, num_workers=2)
        ),
        "DataLoader(datasets, streaming)": lambda: iter(DataLoader(stream, BATCH)),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):  # the first warms up
        for way, epoch in ways.items():
            begin, rows = time.perf_counter(), 0
            for batch in epoch():
                rows += len(batch["y"])
                if time.perf_counter() > begin + most:
                    break
            rates[way] += [rows / (time.perf_counter() - begin)] if turn else []
    for way, found in rates.items():
        print(f"{way:34} {statistics.median(found):12,.0f} rows/s   {min(found):12,.0f} to {max(found):12,.0f}")


if __name__ == "__main__":
    main()
