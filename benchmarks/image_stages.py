"""Images a second of each stage of experiment=imagenet's data: rows of 256 x 256 pixels read from HDF5, and each
transform of a batch on the device. What an H100 needs for ResNet-50 is some 3,000 images a second. On a CPU a second is
one of a core's: what else runs there takes the core away, and hardly changes that.

./run python benchmarks/image_stages.py [--device cuda] [--batch 64] [--rows 2000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from read_common import interleaved, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import _python  # noqa: F401 - it finds the libraries, which nobody has installed on a lent GPU
from h5rows import Dataset
from lab.transforms.augment import TrivialAugment
from lab.transforms.fields import Normalize, RandomFlip, ToFloat
from lab.transforms.sized import RandomResizedCrop

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device, random = torch.device(args.device), np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "images.h5"
        with h5py.File(path, "w") as file:
            dset = file.create_dataset("x", (args.rows, 3, 256, 256), "u1")
            for k in range(0, args.rows, 100):
                dset[k : k + 100] = random.integers(0, 256, dset[k : k + 100].shape, dtype=np.uint8)
        data = Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}})
        out = {"x": torch.empty((args.batch, 3, 256, 256), dtype=torch.uint8, pin_memory=device.type == "cuda")}

        def read() -> None:
            data.gather(random.integers(0, args.rows, args.batch), out)

        crop = RandomResizedCrop("x", [224, 224], [0.08, 1.0], [0.75, 4 / 3], 0)
        stages: dict[str, Any] = {
            "ToFloat": ToFloat("x"),
            "RandomResizedCrop 224": crop,
            "RandomFlip": RandomFlip("x", -1, 0),
            "TrivialAugment": TrivialAugment("x", 0),
            "Normalize": Normalize("x", MEAN, STD),
        }
        numbers = torch.arange(args.batch, device=device)
        read()
        batch = {"x": out["x"].to(device)}
        host = torch.device("cpu")
        ways = {"read: 196,608 bytes a row": timed(read, args.batch, host)}
        if device.type == "cuda":
            ways["to the device"] = timed(lambda: out["x"].to(device, non_blocking=True), args.batch, device)
        for name, stage in stages.items():
            ways[name] = timed(lambda stage=stage, batch=batch: stage(batch, numbers), args.batch, device)
            batch = stage(batch, numbers)
        first = {"x": out["x"].to(device)}
        recipe = [stage for name, stage in stages.items() if name != "TrivialAugment"]
        ways["all, as in experiment=imagenet"] = timed(lambda: chained(recipe, first, numbers), args.batch, device)
        both = [*stages.values()]
        ways["all, and TrivialAugment"] = timed(lambda: chained(both, first, numbers), args.batch, device)
        if device.type == "cuda":
            compiled = torch.compile(lambda: chained(both, first, numbers))
            ways["the same, compiled"] = timed(compiled, args.batch, device)
        for way in ways.values():
            way()
        rates = interleaved(ways, args.rounds)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report(f"batches of {args.batch}, {name}", rates, next(iter(rates)), "images")


def chained(stages: list[Any], batch: dict[str, torch.Tensor], numbers: torch.Tensor) -> dict[str, torch.Tensor]:
    for stage in stages:
        batch = stage(batch, numbers)
    return batch


def timed(call: Callable[[], object], count: int, device: torch.device) -> Callable[[], tuple[int, float]]:
    clock = time.perf_counter if device.type == "cuda" else time.process_time

    def run() -> tuple[int, float]:
        began = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return count, clock() - began

    return run


if __name__ == "__main__":
    main()
