"""Batches of random rows of a contiguous dataset, warm, against the limit: `index_select` of such rows from RAM into
reused memory, on one core. Dataset.gather and the Loader with one and two threads; for comparison gather into new
memory, one `preadv` for each row, and h5py. And what it costs that the files are compared with what they were.

./run python benchmarks/read_gather.py [folder] [--quick]

A ratio above 1 is faster than the limit. It is the median over rounds in which the ways take turns: of the time that
passes, and of the CPU time of all threads, which says more about one thread on a machine that other programs use.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import torch
from read_common import arguments

from h5rows import Dataset
from h5rows.reading.raw import RawFile
from samebits.data import Loader, TrainPlan, shuffled

BATCH = 256
LIMIT = "limit: index_select from RAM, out="


def compare(folder: Path, title: str, shape: tuple[int, ...], count: int, batches: int, rounds: int) -> None:
    """Print the time of a batch in each way, and its ratio to the limit. batches: of a turn."""
    path, row = folder / "gather.h5", int(np.prod(shape))
    ram = torch.empty((count, *shape), dtype=torch.uint8)
    with h5py.File(path, "w") as file:
        dset = file.create_dataset("x", (count, *shape), "u1")
        for k in range(0, count, 1000):
            values = np.random.default_rng(k).integers(0, 256, ram[k : k + 1000].shape, dtype=np.uint8)
            dset[k : k + 1000] = ram.numpy()[k : k + 1000] = values
        begin = dset.id.get_offset()
    data, rng = Dataset(str(path), {"x": "x"}), np.random.default_rng(0)
    out = {"x": torch.zeros((BATCH, *shape), dtype=torch.uint8)}
    buffers = [out["x"], torch.zeros_like(out["x"])]
    held, raw = h5py.File(path)["x"], os.open(path, os.O_RDONLY)

    def random_rows(read: Callable[[np.ndarray], object]) -> Callable[[int], None]:
        def some(batches: int) -> None:
            for rows in rng.integers(0, count, (batches, BATCH)):
                read(rows)

        return some

    def two_threads(batches: int) -> None:
        def work(k: int) -> None:
            for rows in np.random.default_rng(k).integers(0, count, (batches // 2, BATCH)):
                torch.index_select(ram, 0, torch.from_numpy(rows), out=buffers[k])

        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def preadv(rows: np.ndarray) -> None:
        for to, k in zip(out["x"].numpy(), rows.tolist(), strict=True):
            os.preadv(raw, [to], begin + k * row)

    def loader(threads: int) -> Callable[[int], None]:
        plan = TrainPlan(shuffled(data, 0), BATCH, [BATCH], 0, 1, 0)
        stream = iter(Loader(data, plan, torch.device("cpu"), kind="threads", num_workers=threads, seed=0))

        def some(batches: int) -> None:
            for batch in islice(stream, batches):
                del batch

        return some

    ways = {
        LIMIT: random_rows(lambda rows: torch.index_select(ram, 0, torch.from_numpy(rows), out=out["x"])),
        "Dataset.gather(rows, out)": random_rows(lambda rows: data.gather(rows, out)),
        "Loader, 1 thread": loader(1),
        "the limit in 2 threads": two_threads,
        "Loader, 2 threads": loader(2),
        "Dataset.gather(rows), new memory": random_rows(lambda rows: data.gather(rows)),
        "os.preadv of each row": random_rows(preadv),
        "h5py used well: held, sorted batches": random_rows(lambda rows: held[np.unique(rows)]),
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            way(batches // 4)  # what the threads have made while other ways ran does not count
            began, cpu = time.perf_counter(), time.process_time()
            way(batches)
            took[name].append(((time.perf_counter() - began) / batches, (time.process_time() - cpu) / batches))
            time.sleep(0.1)  # the threads make their next batches
    versions = f"numpy {np.__version__}, torch {torch.__version__}"
    print(f"\n{title}  ({platform.machine()}, {os.cpu_count()} cores, {versions})")
    print(f"\n| {BATCH} rows | us | CPU us | limit / it | limit / it, CPU |\n|---|---|---|---|---|")
    for name, turns in took.items():
        pairs = list(zip(took[LIMIT], turns, strict=True))[1:]  # the first turn warms up
        wall, cpu = (1e6 * statistics.median(own[k] for _, own in pairs) for k in (0, 1))
        ratios = " | ".join(f"{statistics.median(one[k] / own[k] for one, own in pairs):.2f}" for k in (0, 1))
        print(f"| {name} | {wall:,.0f} | {cpu:,.0f} | {ratios} |", flush=True)
    os.close(raw)
    path.unlink()


def checks(folder: Path, fields: int, shards: int, count: int, batches: int) -> None:
    """Microseconds of a batch with the checks and without, batch by batch in turns."""
    for k in range(shards):
        with h5py.File(folder / f"shard{k}.h5", "w") as file:
            for field in range(fields):
                values = np.random.default_rng(k).integers(0, 256, (count // shards, 3072), dtype=np.uint8)
                file[f"f{field}"] = values if field == 0 else values[:, 0].astype("i8")
    names = {f"f{field}": f"f{field}" for field in range(fields)}
    data = Dataset(str(folder / "shard*.h5"), names, "all", {"all": {"group": "/"}})
    out = {name: torch.empty((BATCH, *shape), dtype=dtype) for name, (shape, dtype) in data.spec.items()}
    check, rng = RawFile.check, np.random.default_rng(0)
    took: dict[bool, list[float]] = {True: [], False: []}
    for k in range(2 * batches):
        RawFile.check = check if k % 2 else lambda self: None  # type: ignore[method-assign]
        rows = rng.integers(0, len(data), BATCH)
        began = time.perf_counter()
        data.gather(rows, out)
        took[bool(k % 2)].append(1e6 * (time.perf_counter() - began))
    RawFile.check = check  # type: ignore[method-assign]
    checked, bare = statistics.median(took[True]), statistics.median(took[False])
    print(
        f"{BATCH} rows of 3 KB, {fields} field(s), {shards} file(s): {checked:.1f} us a batch, {bare:.1f} without "
        f"checks: {checked - bare:.1f} us for them"
    )
    for k in range(shards):
        (folder / f"shard{k}.h5").unlink()


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = arguments(__doc__)
    less, rounds = (16, 1) if args.quick else (1, 15)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for fields, shards in ((1, 1), (2, 1), (4, 1), (2, 16)):
            checks(Path(folder), fields, shards, 32768 // less, 4000 // less)
        compare(Path(folder), "3 x 224 x 224 uint8 (150 KB)", (3, 224, 224), 4096 // less, 32, rounds)
        compare(Path(folder), "3 x 32 x 32 uint8 (3 KB)", (3, 32, 32), 65536 // less, 512 // less, rounds)
