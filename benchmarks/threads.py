"""hardware.num_threads=auto beside 1 and 2 threads: the default MLP, a small ResNet; then beside two busy processes.

    ./run python benchmarks/threads.py [--rounds 5]

The runs are made in turns. ms a step: the median of the logged intervals of 10 steps, without the first, which
prepares kernels. Both columns are medians over the rounds. `load` is that of the whole machine at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT = ["trainer.log_every=10", "trainer.eval_every=null", "trainer.save_every=null", "hardware=cpu", "logger=none"]
MODELS = {"mlp": ["trainer.max_steps=100"], "resnet": ["trainer.max_steps=30"]}
THREADS = ("auto", "1", "2")
BUSY = "while True: pass"


def run(model: str, threads: str) -> tuple[float, float, str]:
    """(ms a step, seconds to the first logged line's step, what the run said of its threads)."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "src" / "train.py"), *SHORT, *MODELS[model], f"model={model}"]
        began = time.time()
        subprocess.run(
            [*command, f"hardware.num_threads={threads}", f"hydra.run.dir={folder}/run"],
            check=True,
            capture_output=True,
            env=env,
        )
        run_dir = Path(folder) / "run"
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        said = re.search(r"threads: ([^;]*);", (run_dir / "train.log").read_text())
    rates = [64e3 / line["perf/samples_per_s"] for line in lines[1:] if "perf/samples_per_s" in line]
    assert said is not None
    return statistics.median(rates), lines[0]["time"] - began, said[1]


def measure(rounds: int) -> None:
    found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for _ in range(rounds):
        for model in MODELS:
            for threads in THREADS:
                found.setdefault((model, threads), []).append(run(model, threads))
    print(f"\nload {os.getloadavg()[0]:.1f}, {rounds} rounds\n")
    print("| model | threads | ms a step | to the 10th step, s | said |\n|---|---|---|---|---|")
    for (model, threads), runs in found.items():
        step, first = (statistics.median(each[i] for each in runs) for i in (0, 1))
        said = "; ".join(sorted({each[2] for each in runs})) if threads == "auto" else ""
        print(f"| {model} | {threads} | {step:.2f} | {first:.2f} | {said} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("as the machine is")
    measure(args.rounds)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        print("\nbeside two busy processes")
        measure(args.rounds)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
