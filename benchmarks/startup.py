"""Seconds from the command to its output, its first step and its end, beside what importing torch alone costs.

    ./run python benchmarks/startup.py [--rounds 7]

The commands run in turns; the table gives medians. The first step is read off the first line of metrics.jsonl
(trainer.log_every=1), counted from the start of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "src" / "train.py")]
# what any project with Hydra has to do before its first step
COMPOSED = (
    f"import hydra, torch; hydra.initialize_config_dir({str(ROOT / 'conf')!r}, 'bare', '1.3'); hydra.compose('train')"
)
TINY = ["trainer.max_steps=10", "trainer.log_every=1", "trainer.save_every=null", "hardware=cpu"]


def whole(command: list[str]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return measure


def first_step(*overrides: str) -> Callable[[], float]:
    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            command = [*TRAIN, *TINY, *overrides, f"hydra.run.dir={folder}/run"]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "WANDB_MODE": "offline"})
            line = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[0]
            return json.loads(line)["time"] - began

    return measure


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return {way: what it measured in each round}, after one without a record, which brings files into memory."""
    times: dict[str, list[T]] = {way: [] for way in ways}
    for measure in ways.values() if rounds > 1 else ():
        measure()
    for _ in range(rounds):
        for way, measure in ways.items():
            times[way].append(measure())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    ways = {
        "import torch": whole([sys.executable, "-c", "import torch"]),
        "import torch, numpy": whole([sys.executable, "-c", "import torch, numpy"]),
        "import torch, Hydra composes the config": whole([sys.executable, "-c", COMPOSED]),
        "train.py --help": whole([*TRAIN, "--help"]),
        "train.py --cfg job": whole([*TRAIN, "--cfg", "job"]),
        "first step, 1 process": first_step("logger=none"),
        "first step, 1 process, with Weights & Biases": first_step(),
        "first step, 2 processes": first_step("logger=none", "trainer=ddp", "hardware.num_procs=2"),
    }
    middle = {way: statistics.median(values) for way, values in in_turns(ways, args.rounds).items()}
    print("| command | s | x import torch | minus import of torch and numpy, s |\n|---|---|---|---|")
    for way, seconds in middle.items():
        beyond = seconds - middle["import torch, numpy"]
        print(f"| {way} | {seconds:.2f} | {seconds / middle['import torch']:.2f} | {beyond:+.2f} |")


if __name__ == "__main__":
    main()
