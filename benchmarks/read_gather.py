"""Batches of random rows of a contiguous dataset, warm: Dataset.gather against its limit, and against h5py; and what
it costs that the files are compared with what they were at the opening.

./run python benchmarks/read_gather.py [folder] [--quick]
"""

from __future__ import annotations

import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from read_common import arguments, interleaved, naive_loader, report

from h5rows import Dataset
from h5rows.reading.raw import RawFile

BATCH = 256


def compare(folder: Path, title: str, shape: tuple[int, ...], count: int, rounds: int) -> None:
    path = folder / "gather.h5"
    with h5py.File(path, "w") as file:
        dset = file.create_dataset("x", (count, *shape), "u1")
        for k in range(0, count, 1000):
            block = dset[k : k + 1000].shape
            dset[k : k + 1000] = np.random.default_rng(k).integers(0, 256, block, dtype=np.uint8)
        offset = dset.id.get_offset()
    data = Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}})
    out = {"x": torch.empty((BATCH, *shape), dtype=torch.uint8)}
    row = int(np.prod(shape))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    rows = torch.frombuffer(mapped, dtype=torch.uint8, offset=offset, count=count * row).view(count, *shape)
    held = h5py.File(path)["x"]

    def epoch(read: Callable[[np.ndarray], object]) -> Callable[[], int]:
        def run() -> int:
            order = np.random.permutation(count)[: count // BATCH * BATCH].reshape(-1, BATCH)
            for part in order:
                read(part)
            return order.size

        run()
        return run

    rates = interleaved(
        {
            "limit: index_select(mapping, out=), 1 thread": epoch(
                lambda r: torch.index_select(rows, 0, torch.from_numpy(r), out=out["x"])
            ),
            "Dataset.gather(rows, out), 1 thread": epoch(lambda r: data.gather(r, out)),
            "Dataset.gather(rows)": epoch(data.gather),
            "h5py used well: held, sorted batches": epoch(lambda r: torch.from_numpy(held[np.sort(r)])),
            "DataLoader, 2 workers, f['x'][i]": naive_loader(str(path), "x", BATCH, 2),
        },
        rounds,
    )
    report(title, rates, "limit: index_select(mapping, out=), 1 thread", "samples")
    path.unlink()


def checks(folder: Path, fields: int, shards: int, batches: int) -> None:
    """Microseconds of a batch with the checks and without, batch by batch in turns."""
    for k in range(shards):
        with h5py.File(folder / f"shard{k}.h5", "w") as file:
            for field in range(fields):
                values = np.random.default_rng(k).integers(0, 256, (32768 // shards, 3072), dtype=np.uint8)
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
    less, rounds = (16, 1) if args.quick else (1, 7)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for fields, shards in ((1, 1), (2, 1), (4, 1), (2, 16)):
            checks(Path(folder), fields, shards, 4000 // less)
        compare(Path(folder), "3 x 224 x 224 uint8 (150 KB)", (3, 224, 224), 4096 // less, rounds)
        compare(Path(folder), "3 x 32 x 32 uint8 (3 KB)", (3, 32, 32), 65536 // less, rounds)
