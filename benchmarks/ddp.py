"""Steps per second of our loop on two ranks beside bare DistributedDataParallel, and how equal the ranks are.

    python benchmarks/ddp.py [--blocks 60] [--threads 1]

Two processes on one machine, gloo, data in memory, 32 samples a rank, AdamW (fused), clipped at norm 1, the loss logged
each 50 steps. Bare is what one writes by hand: DDP as torch sets it up, zero_grad, backward, clip_grad_norm_, step. The
two take turns in the same processes, 50 steps each: a callback of the run does the bare steps at each of its logs. The
table gives medians over these blocks, and over the ratios of neighbours. Ours includes all that the loop does: data,
log, balance figures, agreeing to go on. Target: ours / bare >= 0.97.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
from lab.callbacks.base import Callback  # noqa: E402

SIZE, SHARE, RANKS, INPUTS, STEPS = 4096, 32, 2, 64, 50
WARM_UP = 4  # blocks
MODELS = {"MLP 64-64-10": [64], "MLP 64-512-512-10": [512, 512]}


class Bare(Callback):
    """Does 50 bare steps at each log; what lies between two logs is ours."""

    def __init__(self, hidden: list[int], file: Path) -> None:
        self.file = file
        self.blocks: list[tuple[float, float]] = []  # seconds a step: ours, bare
        widths = [INPUTS, *hidden]
        layers = [layer for pair in zip(widths, hidden) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(widths[-1], 10)))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.x, self.y = torch.randn(SIZE, INPUTS), torch.randint(10, (SIZE,))
        self.rows, self.done = torch.randperm(SIZE), 0

    def on_start(self, state: Any) -> None:
        self.began = time.perf_counter()

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        ours_end = time.perf_counter()
        for _ in range(STEPS):
            loss = self.step()
        total = loss.detach()
        dist.all_reduce(total)
        total.item()
        bare_end = time.perf_counter()
        self.blocks.append(((ours_end - self.began) / STEPS, (bare_end - ours_end) / STEPS))
        self.began = bare_end

    def step(self) -> torch.Tensor:
        if self.done + SHARE > SIZE:
            self.rows, self.done = torch.randperm(SIZE), 0
        index = self.rows[self.done : self.done + SHARE]
        self.done += SHARE
        loss = F.cross_entropy(self.net(self.x[index]), self.y[index])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def on_end(self, state: Any) -> None:
        if dist.get_rank() == 0:
            self.file.write_text(json.dumps(self.blocks[WARM_UP:]))


def measure(hidden: list[int], blocks: int, threads: int) -> tuple[list[tuple[float, float]], dict[str, float]]:
    """Seconds a step of each block, ours and bare, and the balance of the ranks in our steps."""
    from conftest import start_run

    import lab.run

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "blocks.json")
        lab.run.make_callbacks = lambda config: [Bare(hidden, file)]  # type: ignore[assignment]
        run = start_run(
            Path(folder) / "run",
            "data=synthetic", f"data.size={SIZE}", f"data.shape=[{INPUTS}]", f"model.hidden={hidden}", "logger=none",
            "hardware=cpu", f"hardware.num_threads={threads}", "trainer=ddp", f"hardware.num_procs={RANKS}",
            f"trainer.global_batch_size={SHARE * RANKS}", f"trainer.max_steps={STEPS * (blocks + WARM_UP)}",
            "trainer.max_epochs=null", f"trainer.log_every={STEPS}", "trainer.eval_every=null",
            "trainer.save_every=null",
        )  # fmt: skip
        return json.loads(file.read_text()), json.loads((run / "result.json").read_text())["balance"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    print(f"torch {torch.__version__}, {RANKS} ranks, {args.blocks} blocks of {STEPS} steps each way\n")
    print("| model | bare DDP, steps/s | ours, steps/s | ours / bare | balance (max over mean): memory, own work |")
    print("|---|---|---|---|---|", flush=True)
    silent, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    for name, hidden in MODELS.items():
        os.dup2(silent, 2)
        try:
            blocks, balance = measure(hidden, args.blocks, args.threads)
        finally:
            os.dup2(stderr, 2)
        own, hand = (statistics.median(column) for column in zip(*blocks))
        ratio = statistics.median(bare / ours for ours, bare in blocks)
        print(
            f"| {name} | {1 / hand:.0f} | {1 / own:.0f} | {ratio:.3f} | "
            f"{balance['memory']:.3f}, {balance['step_time']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
