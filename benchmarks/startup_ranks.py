"""Seconds from the command to the end of the first step, and to the end of the command, for 1 and 2 ranks on the CPU.

    ./run python benchmarks/startup_ranks.py [--rounds 7] [--ranks 1 2]
    PYTHONPATH=<folder with lightning> ./run python benchmarks/startup_ranks.py

Ours is the whole template (Hydra, checks, run directory, HDF5, evaluation and scores at the end, no logger); torchrun
starts a plain script of DDP without any of these; Lightning trains the same small net with everything switched off.
All take ten steps of 64 samples; the peers leave without Python's teardown, in which gloo aborts some of them. The
commands run in turns; the table gives medians. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from startup import TRAIN, in_turns

OURS = [*TRAIN, "logger=none", "hardware=cpu", "hardware.num_threads=1"]
OURS += ["trainer.max_steps=10", "trainer.log_every=1", "trainer.save_every=null", "model.hidden=[64]"]

PLAIN = """
import os, sys, time, torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
size = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for step in range(10):
    x, y = torch.randn(64 // size, 64), torch.randint(10, (64 // size,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0 and dist.get_rank() == 0:
        loss.item()
        open(sys.argv[1], "w").write(str(time.time()))
dist.destroy_process_group()
os._exit(0)
"""

LIGHTNING = """
import os, sys, time, torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
ranks = int(sys.argv[2])

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)

    def on_train_batch_end(self, outputs, batch, index):
        if index == 0 and self.global_rank == 0:
            outputs["loss"].item()
            open(sys.argv[1], "w").write(str(time.time()))

data = TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
trainer = lightning.Trainer(
    accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_steps=10, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(data, batch_size=64 // ranks, shuffle=True))
os._exit(0)
"""

Measure = Callable[[], tuple[float, float]]


def timed(command: list[str], first_step: Callable[[], float]) -> tuple[float, float]:
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return first_step() - began, time.time() - began


def ours(ranks: int) -> Measure:
    def measure() -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            strategy = ["trainer=ddp", f"hardware.num_procs={ranks}"] if ranks > 1 else []

            def first_step() -> float:
                return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["time"]

            return timed([*OURS, *strategy, f"hydra.run.dir={run}"], first_step)

    return measure


def script(text: str, ranks: int, launcher: list[str]) -> Measure:
    def measure() -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            file, told = Path(folder) / "script.py", Path(folder) / "first_step"
            file.write_text(text)
            command = [sys.executable, *launcher, str(file), str(told), str(ranks)]
            return timed(command, lambda: float(told.read_text()))

    return measure


def ways(numbers: list[int]) -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    for ranks in numbers:
        found[f"ours, {ranks}"] = ours(ranks)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        found[f"torchrun with a plain script, {ranks}"] = script(PLAIN, ranks, torchrun)
        if importlib.util.find_spec("lightning"):
            found[f"Lightning{' ddp' if ranks > 1 else ''}, {ranks}"] = script(LIGHTNING, ranks, [])
    if not importlib.util.find_spec("lightning"):
        print("lightning is not installed: left out", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    times = in_turns(ways(args.ranks), args.rounds)
    print("| ranks | first step, s | whole command, s |\n|---|---|---|")
    for way, values in times.items():
        first, whole = (statistics.median(column) for column in zip(*values))
        print(f"| {way} | {first:.2f} | {whole:.2f} |")


if __name__ == "__main__":
    main()
