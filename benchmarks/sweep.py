"""What a sweep costs beside its training: tiny jobs (digits, 20 steps, a small MLP), sequential and in a pool.

    ./run python benchmarks/sweep.py [--rounds 5] [--quick]

importing torch            `python -c "import torch"`
10 jobs, one process each  the whole command, report included, over its jobs
the rival's 10 jobs        as lightning-hydra-template runs them: -m, all in one process; and a command for each job
a finished sweep again     100 jobs, all of which have finished
a pool of 2                jobs of about 3 s and 1 thread: jobs a second over those of one at a time, start-up and all

The ways run in turns; the table gives medians. A pool of 2 says something only where 2 cores are idle.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "src" / "train.py"), "-m"]
RIVAL = [sys.executable, str(ROOT / "benchmarks" / "sweep_rival.py")]
TINY = ["logger=none", "hardware=cpu", "hardware.num_threads=1", "model.hidden=[16]", "trainer.max_epochs=null"]
JOBS = 10


def seconds(*commands: list[str]) -> float:
    began = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def fresh(command: Callable[[str], list[list[str]]]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds(*command(folder))


def ours(jobs: int, *more: str) -> Callable[[], float]:
    return lambda: fresh(
        lambda folder: [
            [*TRAIN, *TINY, "trainer.max_steps=20", f"seed=range({jobs})", f"hydra.sweep.dir={folder}/s", *more]
        ]
    )


def rival(jobs: int, each: bool) -> Callable[[], float]:
    def commands(folder: str) -> list[list[str]]:
        if each:
            return [[*RIVAL, f"seed={i}", f"hydra.run.dir={folder}/{i}"] for i in range(jobs)]
        return [[*RIVAL, "-m", f"seed=range({jobs})", f"hydra.sweep.dir={folder}/s"]]

    return lambda: fresh(commands)


def pool(jobs: int, steps: int, at_once: int) -> Callable[[], float]:
    more = ["hydra/launcher=pool", f"hydra.launcher.jobs_at_once={at_once}", f"trainer.max_steps={steps}"]
    return ours(jobs, *more, "trainer.eval_every=null", "trainer.save_every=null", "trainer.log_every=500")


def again(folder: Path, jobs: int) -> Callable[[], float]:
    """The sweep is run here, its second start is what is measured."""
    command = [*TRAIN, *TINY, "trainer.max_steps=2", f"seed=range({jobs})", f"hydra.sweep.dir={folder}/s"]
    seconds([*command, "hydra/launcher=pool"])
    return lambda: seconds(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few jobs: whether it works")
    args = parser.parse_args()
    rounds, jobs, many = (1, 1, 1) if args.quick else (args.rounds, JOBS, 100)
    pooled, steps = (2, 20) if args.quick else (8, 10_000)
    os.environ["WANDB_MODE"] = "offline"
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, tuple[int, Callable[[], float]]] = {
            "importing torch": (1, lambda: seconds([sys.executable, "-c", "import torch"])),
            "ours, one process each": (jobs, ours(jobs)),
            f"a finished sweep of {many} again": (1, again(Path(folder), many)),
            "one at a time": (pooled, pool(pooled, steps, 1)),
            "pool of 2": (pooled, pool(pooled, steps, 2)),
        }
        if importlib.util.find_spec("lightning"):
            ways["the rival, all in one process"] = (jobs, rival(jobs, each=False))
            ways["the rival, a command each"] = (min(jobs, 3), rival(min(jobs, 3), each=True))
        else:
            print("Lightning is not installed (pip install -e '.[bench]'): its rows are left out")
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (_, measure) in ways.items():
                times[way].append(measure())
    each = {way: statistics.median(times[way]) / count for way, (count, _) in ways.items()}
    torch_s, job_s = each["importing torch"], each["ours, one process each"]
    print("| | s a job | x importing torch | x ours |\n|---|---|---|---|")
    for way, value in each.items():
        print(f"| {way} | {value:.2f} | {value / torch_s:.2f} | {value / job_s:.2f} |")
    print(f"\nthroughput of a pool of 2 over one at a time: {each['one at a time'] / each['pool of 2']:.2f}")


if __name__ == "__main__":
    main()
