"""Shuffled epochs of small rows, warm: PyTorch's DataLoader over f['x'][i] and over h5rows.Dataset, and our Loader.

./run python benchmarks/read_dataloader.py                  # 40,000 rows of 3 KB
./run python benchmarks/read_dataloader.py --rows 4000 --rounds 2
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import torch
from read_common import images, interleaved, naive_loader, report
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import h5rows
from samebits.data import Loader, TrainPlan, shuffled

BATCH = 256
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of 4 rows, gzip": {"chunks": (4, 3, 32, 32), "compression": "gzip"},
    "chunks of 1 row, lzf, which h5py reads": {"chunks": (1, 3, 32, 32), "compression": "lzf"},
}


def plain(path: str, workers: int = 0, in_batches: bool = False) -> Callable[[], int]:
    """PyTorch's DataLoader over h5rows.Dataset, as README has it; workers are started and stay.

    in_batches: the sampler requests batches, so nothing is split and stacked."""
    data = h5rows.Dataset(path, {"x": "x"})
    sampler = BatchSampler(RandomSampler(data), BATCH, drop_last=False)
    how = {"batch_size": None, "sampler": sampler} if in_batches else {"batch_size": BATCH, "shuffle": True}
    loader = DataLoader(data, num_workers=workers, persistent_workers=workers > 0, **how)

    def epoch() -> int:
        return sum(len(batch["x"]) for batch in loader)

    epoch()
    return epoch


def ours(path: str) -> Callable[[], int]:
    data = h5rows.Dataset(path, {"x": "x"})
    plan = TrainPlan(shuffled(data, 0), BATCH, [BATCH], 0, 1, 0)
    loader = Loader(data, plan, torch.device("cpu"), kind="threads", seed=0)  # not kept decoded in memory
    batches = iter(loader)

    def epoch() -> int:
        return sum(len(batch["x"]) for batch in islice(batches, len(data) // BATCH))

    epoch()
    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind, layout in KINDS.items():
            path = str(Path(folder) / "x.h5")
            with h5py.File(path, "w") as file:
                values = file.create_dataset("x", (args.rows, 3, 32, 32), "u1", **layout)
                for k, image in enumerate(images(args.rows, 32)):
                    values[k] = image
            ways: dict[str, Callable[[], int]] = {
                "DataLoader, f['x'][i]": naive_loader(path, "x", BATCH, 0),
                "DataLoader, f['x'][i], 2 workers": naive_loader(path, "x", BATCH, 2),
                "DataLoader, h5rows.Dataset": plain(path),
                "DataLoader, h5rows.Dataset, 2 workers": plain(path, 2),
                "DataLoader, a sampler of batches": plain(path, in_batches=True),
                "the engine's Loader, h5rows.Dataset": ours(path),
            }
            rates = interleaved(ways, args.rounds)
            report(f"{kind}, {args.rows:,} rows of 3 KB", rates, next(iter(rates)), "rows")
            Path(path).unlink()


if __name__ == "__main__":
    main()
