"""From which work on two threads are faster than one: what hardware.num_threads=auto goes by (SMALL_FLOP).

    ./run python benchmarks/threads.py [--quick]

Steps of shipped models, of one rank on a CPU, as `./run tune threads` measures them: the shortest of fifty, with 1, 2,
... threads in turns. Where other processes run, `chrt -f 1` before it keeps them off. FLOP of a step: as the rule
estimates them, and as torch counts them. `load` is that of the machine at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
COMMON = ["logger=none", "hardware=cpu", "hardware.num_threads=1", "data.loader=device"]
GPT = ["experiment=shakespeare", "callback=none", "data.path={tokens}"]
CASES = {
    "MLP, width 16": ["model.hidden=[16]"],
    "MLP, width 128": ["model.hidden=[128,128]"],
    "MLP, width 256 (default)": [],
    "MLP, width 512": ["model.hidden=[512,512]"],
    "MLP, width 1024": ["model.hidden=[1024,1024]"],
    "ResNet, width 4": ["model=resnet", "model.width=4"],
    "ResNet, width 8": ["model=resnet", "model.width=8"],
    "ResNet, batch 8": ["model=resnet", "trainer.global_batch_size=8"],
    "ResNet, width 16": ["model=resnet", "model.width=16"],
    "ResNet": ["model=resnet"],
    "GPT, width 32, batch 4": [*GPT, "model.width=32", "model.layers=2", "trainer.global_batch_size=4"],
    "GPT (shakespeare)": GPT,
}


def flop(cfg: Any) -> tuple[float, float]:
    """(estimated, counted) of a micro-batch."""
    from lab.notebook import build
    from lab.profiling import losses_of
    from samebits.device import rough_flop
    from samebits.profiling import count_flop

    parts = build(cfg)
    samples, batch = parts.hardware.micro_batch_sizes[0], next(iter(parts.loaders["train"]))
    guess = rough_flop([parts.model, parts.task], parts.task.run.input_shape, samples)
    losses = losses_of(parts.model, parts.task).values()
    counted = sum(count_flop([parts.model, parts.task], batch, loss) for loss in losses)
    parts.close()
    return guess, counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first case alone: whether it works")
    cases = [*CASES.items()][: 1 if parser.parse_args().quick else None]

    from lab.notebook import compose
    from lab.tune import measure
    from samebits.children import run_in_subprocess

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/tokens.h5"
        random = np.random.default_rng(0)
        with h5py.File(file, "w") as tokens:
            for part in ("train", "val"):
                tokens[f"{part}/tokens"] = random.integers(0, 65, 10_000).astype(np.uint8)
        print("| | MFLOP a step: estimated | counted | ms a step by threads | 1 / most |\n|---|---|---|---|---|")
        for name, overrides in cases:
            cfg = compose([*COMMON, *(text.format(tokens=file) for text in overrides)])
            took_s = run_in_subprocess(name, measure, "threads", cfg)
            guess, counted = run_in_subprocess(name, flop, cfg)
            times = ", ".join(f"{count}: {1e3 * seconds:.2f}" for count, seconds in took_s.items())
            ratio = took_s[1] / took_s[max(took_s)]
            print(f"| {name} | {guess / 1e6:,.1f} | {counted / 1e6:,.1f} | {times} | {ratio:.2f} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
