"""How long the loop stands still for a checkpoint: process.save_async beside torch.save and fsync of the same state.

    ./run python benchmarks/save.py [--rounds 9] [--mb 100] [--folder /tmp]

The state is a model's weights and AdamW's two moments, float32, on the CPU; the loop multiplies matrices. The ways run
in turns; the table gives medians over the rounds. "CPU of it": of the loop's thread, which other processes do not slow.
"slowed" is what the loop loses in all: the time of the save and of the steps after it until it is durable, minus as
many steps at the pace without a save.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
LAYERS = 24  # so 144 tensors and as many step counts


def state_of(mb: float) -> dict[str, Any]:
    """A payload with `mb` megabytes of tensors."""
    width = round((mb * 1e6 / 4 / 3 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    parts = {"model": model.state_dict(), "ema": None, "optimizer": optimizer.state_dict(), "schedule": {}}
    zero = ("samples", "evals_without_improvement", "logged_step", "scored_step")
    return parts | dict.fromkeys(zero, 0) | {"best": [], "ranks": []}


def steps_until(done: Callable[[], bool], work: Callable[[], Any]) -> tuple[int, float]:
    """Returns (steps, seconds) until `done`, at least 20 steps."""
    count, began = 0, time.perf_counter()
    while count < 20 or not done():
        work()
        count += 1
    return count, time.perf_counter() - began


def by_torch(payload: dict[str, Any], folder: Path) -> Callable[[], bool]:
    with open(folder / "torch.pt", "wb") as file:
        torch.save(payload, file)
        file.flush()
        os.fsync(file.fileno())
    return lambda: True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary directory)")
    parser.add_argument("--file", type=Path, default=None, help="where to write the seconds as JSON, by way")
    args = parser.parse_args()
    from samebits.checkpoints import Checkpoints
    from samebits.world import World

    torch.set_num_threads(1)  # where cores are shared, two threads wait for each other
    payload, matrix = state_of(args.mb), torch.randn(192, 192)
    blocked: dict[str, list[float]] = {}
    computed: dict[str, list[float]] = {}
    slowed: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, world = Path(name), World(0, 1, 0, torch.device("cpu"))
        durable = threading.Event()
        inline, beside = (
            Checkpoints(folder, world, save_async=thread, saved=lambda seconds: durable.set())
            for thread in (False, True)
        )

        def ours(checkpoints: Checkpoints, step: int) -> Callable[[], bool]:
            durable.clear()
            checkpoints.save_last(payload | {"step": step})
            return lambda: checkpoints.prepare_and_check() or durable.is_set()  # check raises what a save failed of

        for number in range(args.rounds + 1):  # the first one allocates the copy's memory
            ways = {
                "torch.save": lambda: by_torch(payload, folder),
                "save_async=false": lambda number=number: ours(inline, 2 * number),
                "save_async=true": lambda number=number: ours(beside, 2 * number + 1),
            }
            for way, save in ways.items():
                count, seconds = steps_until(lambda: True, lambda: matrix @ matrix)
                pace = seconds / count
                began, cpu = time.perf_counter(), time.thread_time()
                done = save()
                saved, used = time.perf_counter() - began, time.thread_time() - cpu
                count, seconds = steps_until(done, lambda: matrix @ matrix)
                beside.wait()
                if number:
                    blocked.setdefault(way, []).append(saved)
                    computed.setdefault(way, []).append(used)
                    slowed.setdefault(way, []).append(saved + max(0.0, seconds - count * pace))
    if args.file is not None:
        args.file.write_text(json.dumps(blocked))
    print(f"{args.mb:g} MB, medians of {args.rounds} rounds\n")
    print("| | blocked | / torch.save | CPU of it | slowed in all |\n|---|---|---|---|---|")
    for way in blocked:
        share = statistics.median(blocked[way]) / statistics.median(blocked["torch.save"])
        times = [f"{1e3 * statistics.median(found[way]):.1f} ms" for found in (blocked, computed, slowed)]
        print(f"| {way} | {times[0]} | {share:.2f} | {times[1]} | {times[2]} |")


if __name__ == "__main__":
    main()
