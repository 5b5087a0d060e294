"""Shared by the read_* benchmarks: interleaved timing, sample data, the ways people read HDF5."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of the folder and `quick`, the arguments of a benchmark that reads files."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="where to write (default: the temporary directory)")
    parser.add_argument("--quick", action="store_true", help="one round of few rows: whether it works")
    return parser


def arguments(about: str | None) -> argparse.Namespace:
    """Return the folder and `quick` of the command line of a benchmark that reads files."""
    return parser_of(about).parse_args()


def interleaved(ways: dict[str, Callable[[], int | tuple[int, float]]], rounds: int) -> dict[str, float]:
    """Median items per second of each way; round after round, so that a noisy machine is noisy for all alike.

    A way returns how many items it read, and how many seconds that took if it is not the whole time of the call.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            done = way()
            items, seconds = done if isinstance(done, tuple) else (done, time.perf_counter() - began)
            rates[name].append(items / seconds)
    return {name: statistics.median(values) for name, values in rates.items()}


def report(title: str, rates: dict[str, float], base: str, unit: str) -> None:
    print(
        f"\n{title}  ({platform.machine()}, {os.cpu_count()} cores, h5py {h5py.__version__}, torch {torch.__version__})"
    )
    for name, rate in rates.items():
        print(f"  {name:<44} {rate:>14,.0f} {unit}/s {rate / rates[base]:>8.2f} x")


def images(count: int, size: int = 224, seed: int = 0) -> Iterator[np.ndarray]:
    """Smooth noise with some grain, (3, size, size) uint8: compresses about as photographs do."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        coarse = rng.integers(0, 256, (3, size // 16, size // 16))
        smooth = np.kron(coarse, np.ones((16, 16), dtype=np.int64))
        yield np.clip(smooth + rng.integers(0, 8, smooth.shape), 0, 255).astype(np.uint8)


class Naive(Dataset):
    """What people write: open in __init__ or on first use, f['x'][i] in __getitem__."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name, self.file = path, name, None
        with h5py.File(path) as file:
            self.size = len(file[name])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.file is None:
            import hdf5plugin  # noqa: F401

            self.file = h5py.File(self.path)
        return torch.from_numpy(self.file[self.name][i])


def naive_loader(path: str, name: str, batch_size: int, workers: int) -> Callable[[], int]:
    """An epoch of PyTorch's DataLoader with persistent workers, already started."""
    loader: Any = DataLoader(
        Naive(path, name), batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )

    def epoch() -> int:
        return sum(len(batch) for batch in loader)

    epoch()
    return epoch
