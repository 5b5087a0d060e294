"""Steps per second with W&B online, with a healthy, a slow and a dead server, against those without W&B.

    ./run python benchmarks/wandb_steps.py [--rounds 5] [--steps 4000]

The server is the tests' own, in this process, on this machine: what it and wandb's processes use of the cores counts
as the run's cost. Rounds are interleaved; the table has medians of the speed between the first and the last line of
metrics.jsonl, and of the seconds from the last line to the end of the process, which holds the GPU and the lock.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "tests", "checks/helpers")]
from wandb_server import KEY, Server, serving  # noqa: E402

COMMON = ("hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.save_every=null")
KINDS = ("without", "healthy", "slow", "dead")


def one(kind: str, steps: int, server: Server) -> tuple[float, float]:
    """Returns (steps per second from the first line to the last, seconds from the last line to the process's end)."""
    server.ill = {"slow": lambda path: 2.0, "dead": lambda path: "drop"}.get(kind)
    environment = {**os.environ, "WANDB_API_KEY": KEY, "WANDB_MODE": "online", "WANDB_BASE_URL": server.url}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        logger = "none" if kind == "without" else "wandb"
        options = [f"trainer.max_steps={steps}", "trainer.log_every=50", "trainer.eval_every=1000", f"logger={logger}"]
        command = [sys.executable, str(ROOT / "src/train.py"), *COMMON, *options, f"hydra.run.dir={folder}/run"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        ended = time.time()
        lines = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        speed = (lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"])
        server.ill = None
        sender = f"{folder}/run live"  # of this run alone
        end = time.time() + 3  # it sends the rest, so that no round pays for the one before
        while time.time() < end and subprocess.run(["pgrep", "-f", sender], stdout=subprocess.DEVNULL).returncode == 0:
            time.sleep(0.1)
        subprocess.run(["pkill", "-TERM", "-f", sender], check=False)
        return speed, ended - lines[-1]["time"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with serving() as server:
        for _ in range(args.rounds):
            for kind in KINDS:
                found[kind].append(one(kind, args.steps, server))
    base = statistics.median(speed for speed, _ in found["without"])
    print("| W&B | steps/s | / without | s after the last line |\n|---|---|---|---|")
    for kind, values in found.items():
        speed, end = (statistics.median(column) for column in zip(*values))
        print(f"| {kind} | {speed:.0f} | {speed / base:.2f} | {end:.1f} |")


if __name__ == "__main__":
    main()
