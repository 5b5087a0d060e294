"""Figures of the loader against the usual ways: shuffled epochs, the gap between epochs, what a step pays, workers.

    ./run python benchmarks/loader_figures.py --large 20000 --small 200000        (peers: ./run pip install -e .[bench])
    ./run python benchmarks/loader_figures.py --large 1000 --small 20000 --rounds 3 --only epochs

Ways take turns, round after round; figures are medians over the rounds, so a noisy machine is noisy for all alike.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loader_peers
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from h5rows import Dataset
from samebits.data import Loader, TrainPlan, shuffled

CPU = torch.device("cpu")
LARGE, SMALL = (3, 224, 224), (3, 32, 32)
PEERS = list(loader_peers.PEERS)
# ours / peer, in the order of PEERS; None: a stronger variant of the peer before it, for comparison
TARGETS = {
    LARGE: (14, 7, None, 7, None, 8, 11, None, None, 20),
    SMALL: (100, 25, None, 4, None, 18, 60, None, None, 200),
}


def open_set(folder: Path) -> Dataset:
    return Dataset(path=str(folder / "x.h5"), fields={"x": "x"}, splits={"train": {"group": "/"}}, split="train")


def ring(folder: Path, batch_size: int, kind: str = "threads") -> tuple[Loader, Iterator[Tensor]]:
    dataset = open_set(folder)
    loader = Loader(dataset, TrainPlan(shuffled(dataset, 0), batch_size, [batch_size], 0, 1, 0), CPU, kind=kind, seed=0)
    return loader, (batch["x"] for batch in loader)


def limit(folder: Path, size: int, batch_size: int) -> Callable[[], Iterator[Tensor]]:
    """Bare index_select from the mapping into a reused buffer, on one thread: a copy of the bytes is the least work."""
    values = torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c"))
    out = torch.empty((batch_size, *values.shape[1:]), dtype=torch.uint8)

    def epoch() -> Iterator[Tensor]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on a busy machine, two that wait for each other are many times slower
        for rows in torch.randperm(size).split(batch_size):
            yield torch.index_select(values, 0, rows, out=out[: len(rows)])
        torch.set_num_threads(threads)

    return epoch


def rate(epoch: Callable[[], Iterator[Tensor]], least_s: float) -> float:
    """Samples per second over whole epochs, at least `least_s`: what was made ahead before then counts little."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < least_s:
        for batch in epoch():
            count += len(batch)
    return count / (time.perf_counter() - began)


def epochs(folder: Path, size: int, shape: tuple[int, ...], batch_size: int, rounds: int, least_s: float) -> None:
    loader, stream = ring(folder, batch_size)
    bare = limit(folder, size, batch_size)
    ways: dict[str, Callable[[], float]] = {
        "ours (threads)": lambda: rate(lambda: itertools.islice(stream, size // batch_size), least_s),
        "limit: bare index_select": lambda: rate(bare, least_s),
    }
    names: dict[str, list[str]] = {}
    for name, (way, workers) in loader_peers.PEERS.items():
        for num_workers in workers:
            try:
                epoch = way(folder, size, shape, batch_size, num_workers)
            except ImportError as error:
                print(f"{name} is left out: {error}")
                break
            key = f"{name}/{num_workers}"
            names.setdefault(name, []).append(key)
            ways[key] = lambda epoch=epoch: rate(epoch, least_s)
    rates: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(rounds + (rounds > 1)):  # the first of several warms up
        for key, way in ways.items():
            rates[key].append(way())
    medians = {key: statistics.median(found[-rounds:]) for key, found in rates.items()}
    ours = medians["ours (threads)"]
    print(f"\nshuffled epoch of {size:,} samples of {np.prod(shape) / 1000:.0f} KB, batch {batch_size}: {loader.why}\n")
    print("| way | samples/s | ours / it | target |\n|---|---|---|---|")
    print(f"| ours (threads) | {ours:,.0f} | | |")
    bare_rate = medians["limit: bare index_select"]
    print(f"| limit: bare index_select | {bare_rate:,.0f} | {ours / bare_rate:.2f} | 0.8 |")
    for name, keys in names.items():
        best = max(keys, key=lambda key: medians[key])
        told = f"{name} (best: {best.split('/')[-1]} workers)" if len(keys) > 1 else name
        target = TARGETS[shape][PEERS.index(name)] or ""
        print(f"| {told} | {medians[best]:,.0f} | {ours / medians[best]:.1f} | {target} |", flush=True)
    loader.close()


def gap(folder: Path, size: int, shape: tuple[int, ...], rounds: int) -> None:
    """From asking for the first batch of the next epoch to having it, beside a step of 10 ms."""
    loader, stream = ring(folder, 64)
    peer = loader_peers.by_sample(loader_peers.NaiveH5)(folder, size, shape, 64, 2)
    gaps: dict[str, list[float]] = {"ours (threads)": [], "DataLoader, 2 persistent workers": []}
    for _ in range(rounds):
        for _ in range(20):
            next(stream)
            time.sleep(0.01)
        began = time.perf_counter()
        next(stream)
        gaps["ours (threads)"].append(time.perf_counter() - began)
        for _ in peer():
            pass
        began = time.perf_counter()
        next(peer())
        gaps["DataLoader, 2 persistent workers"].append(time.perf_counter() - began)
    print("\n| gap between epochs | ms | target |\n|---|---|---|")
    for name, found in gaps.items():
        print(f"| {name} | {statistics.median(found) * 1e3:.2f} | {1 if name.startswith('ours') else ''} |", flush=True)
    loader.close()


def step(folder: Path, size: int, shape: tuple[int, ...], rounds: int) -> None:
    """What a batch of 64 adds to a step of 10 ms that leaves the CPU free."""
    loader, stream = ring(folder, 64)
    peer = loader_peers.by_sample(loader_peers.NaiveH5)(folder, size, shape, 64, 2)
    endless = itertools.chain.from_iterable(peer() for _ in itertools.count())
    ways: dict[str, Iterator[Any]] = {
        "": itertools.repeat(None),
        "ours (threads)": stream,
        "DataLoader, 2 workers": endless,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    steps = max(5, min(50, size // 64 - 1))
    for _ in range(rounds):
        for name, batches in ways.items():
            next(batches)
            began = time.perf_counter()
            for _ in range(steps):
                next(batches)
                time.sleep(0.01)
            times[name].append((time.perf_counter() - began) / steps)
    bare = statistics.median(times.pop(""))
    print(f"\n| added to a step of {bare * 1e3:.2f} ms | ms | target |\n|---|---|---|")
    for name, found in times.items():
        print(
            f"| {name} | {(statistics.median(found) - bare) * 1e3:.2f} | {0.1 if name.startswith('ours') else ''} |",
            flush=True,
        )
    loader.close()


class Busy:
    """A transform that holds the GIL for 0.2 ms a sample."""

    def __init__(self, size: int, shape: tuple[int, ...]) -> None:
        self.size, self.values = size, np.ones(shape, np.uint8)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict[str, Any]:
        end = time.perf_counter() + 0.0002
        while time.perf_counter() < end:
            pass
        return {"x": self.values}


def workers(size: int, shape: tuple[int, ...], rounds: int, least_s: float) -> None:
    dataset = Busy(size, shape)
    plan = TrainPlan(shuffled(dataset, 0), 64, [64], 0, 1, 0)
    loader = Loader(dataset, plan, CPU, kind="workers", num_workers=2, seed=0)
    stream = (batch["x"] for batch in loader)
    peer: Any = DataLoader(dataset, 64, shuffle=True, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    rates: dict[str, list[float]] = {"ours (workers)": [], "DataLoader, 2 workers": []}
    for _ in range(rounds + (rounds > 1)):
        rates["ours (workers)"].append(rate(lambda: itertools.islice(stream, size // 64), least_s))
        rates["DataLoader, 2 workers"].append(rate(lambda: (batch["x"] for batch in peer), least_s))
    ours, theirs = (statistics.median(found[-rounds:]) for found in rates.values())
    print(f"\n| 0.2 ms of Python a sample of {np.prod(shape) / 1000:.0f} KB | samples/s |\n|---|---|")
    print(f"| ours (2 workers) | {ours:,.0f} |\n| DataLoader, 2 workers | {theirs:,.0f} |")
    print(f"| ratio (target 1.6) | {ours / theirs:.2f} |")
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=2000, help="samples of 150 KB")
    parser.add_argument("--small", type=int, default=50_000, help="samples of 3 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least-s", type=float, default=0.6, help="seconds that each way is measured for in a round")
    parser.add_argument("--folder", default=None, help="where the files are written and deleted again")
    parser.add_argument("--only", nargs="*", default=["epochs", "gap", "step", "workers"])
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for size, shape in ((options.large, LARGE), (options.small, SMALL)):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            if set(options.only) - {"workers"}:
                loader_peers.write(folder, size, shape)
            if "epochs" in options.only:
                epochs(folder, size, shape, 256, options.rounds, options.least_s)
            if shape == LARGE and "gap" in options.only:
                gap(folder, size, shape, options.rounds)
            if shape == LARGE and "step" in options.only:
                step(folder, size, shape, options.rounds)
        if shape == LARGE and "workers" in options.only:
            workers(min(size, 2000), shape, options.rounds, options.least_s)


if __name__ == "__main__":
    main()
