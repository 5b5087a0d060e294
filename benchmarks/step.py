"""Time per training step of a small MLP: our loop and Lightning's, in turns, beside bare PyTorch.

    ./run python benchmarks/step.py [--rounds 7] [--steps 1000]

Data in memory, AdamW, fused everywhere but in the last row of bare PyTorch, clipping at norm 1, one thread, the loss
logged each 50 steps. The optimizer has one group of parameters, as a loop written by hand; by default ours has two,
so two fused kernels. The table gives medians over the rounds, and the median of the ratios within a round. Ours is read
off metrics.jsonl, logging included. Ours beside bare PyTorch alone, and of other models, more exactly: ./run bench.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

SIZE, LOG_EVERY, BATCH = 4096, 50, 32


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(SIZE, 64), torch.randint(10, (SIZE,))


def bare(steps: int, fused: bool) -> float:
    (x, y), net = data(), model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    rows, done = torch.randperm(SIZE), 0
    for step in range(LOG_EVERY + steps):
        if step == LOG_EVERY:
            began = time.perf_counter()
        if done + BATCH > SIZE:
            rows, done = torch.randperm(SIZE), 0
        index = rows[done : done + BATCH]
        done += BATCH
        loss = F.cross_entropy(net(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % LOG_EVERY == 0:
            loss.item()
    return (time.perf_counter() - began) / steps


def ours(steps: int, *overrides: str) -> float:
    import common  # noqa: F401 - registers the program

    from samebits.testing import start_run

    with tempfile.TemporaryDirectory() as folder:
        run = start_run(
            Path(folder) / "run", "model.hidden=[64]", "data=synthetic", f"data.size={SIZE}", "data.shape=[64]",
            "logger=none", "hardware=cpu", "hardware.num_threads=1", f"trainer.global_batch_size={BATCH}",
            f"trainer.max_steps={LOG_EVERY + steps}", "trainer.max_epochs=null", f"trainer.log_every={LOG_EVERY}",
            "trainer.eval_every=null", "trainer.save_every=null", "trainer.max_eval_batches=1", *overrides,
        )  # fmt: skip
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [line["perf/samples_per_s"] for line in lines if "perf/samples_per_s" in line]
    return BATCH * statistics.mean(1 / rate for rate in rates[1:])  # the first interval holds the start


def lightning(steps: int, metrics: bool) -> float:
    """metrics: as lightning-hydra-template does, with torchmetrics updated and logged at each step."""
    import lightning as L
    import torchmetrics
    from torch.utils.data import DataLoader, TensorDataset

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.began = model(), 0.0
            self.loss = torchmetrics.MeanMetric()
            self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            x, y = batch
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            if metrics:
                self.loss(loss)
                self.accuracy(logits, y)
                self.log("train/loss", self.loss, on_step=False, on_epoch=True, prog_bar=True)
                self.log("train/acc", self.accuracy, on_step=False, on_epoch=True, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

        def on_train_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            self.took = time.perf_counter() - self.began

    batches = DataLoader(TensorDataset(*data()), BATCH, shuffle=True)
    module = Module()
    trainer = L.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=LOG_EVERY,
    )  # fmt: skip
    trainer.fit(module, batches)
    return module.took / steps


def ways_of(steps: int) -> dict[str, Callable[[], float]]:
    ways: dict[str, Callable[[], float]] = {
        "bare PyTorch, fused optimizer": lambda: bare(steps, fused=True),
        "ours": lambda: ours(steps, "optim.decay_norms_and_biases=true"),
        "ours, biases without weight decay (default)": lambda: ours(steps),
        "bare PyTorch, optimizer not fused": lambda: bare(steps, fused=False),
    }
    try:
        import lightning as _  # noqa: F401
    except ImportError:
        print("Lightning is not installed (pip install -e '.[bench]'): its rows are left out")
        return ways
    logged = "Lightning, metrics logged each step (lightning-hydra-template's way)"
    return ways | {
        "Lightning, defaults": lambda: lightning(steps, metrics=False),
        logged: lambda: lightning(steps, metrics=True),
    }


@contextmanager
def quiet() -> Iterator[None]:
    """What runs and Lightning print goes nowhere."""
    silent, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(silent, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr), os.close(silent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"torch {torch.__version__}, {args.rounds} rounds of {args.steps} steps\n")
    ways = ways_of(args.steps)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _round in range(args.rounds):
        for way, measure in ways.items():
            with quiet():
                times[way].append(measure())
    print("| loop | us per step | x bare, fused |\n|---|---|---|")
    for way, values in times.items():
        ratio = statistics.median(own / other for own, other in zip(values, times["bare PyTorch, fused optimizer"]))
        print(f"| {way} | {statistics.median(values) * 1e6:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
