"""Time per training step: our loop beside bare PyTorch with the same fused optimizer, and, for the MLP, Lightning.

    python benchmarks/step.py [--rounds 7] [--cases mlp cnn gpt] [--scale 1.0]

Data in memory, AdamW, clipping at norm 1, one thread, the loss logged each 50 steps. The ways run in turns; the table
gives medians over the rounds, and the median of the ratios within a round. Ours is read off metrics.jsonl, logging
included. Targets, ours over bare with the fused optimizer: 1.05 for the MLP's short step, 1.02 for the CNN and the GPT.
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
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
from lab.models.gpt import GPT  # noqa: E402
from lab.models.resnet import ResNet  # noqa: E402

SIZE, LOG_EVERY, WINDOW, VOCABULARY = 4096, 50, 64, 256


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Case:
    """shape: of a sample of x; None: tokens. overrides: our run's."""

    net: Callable[[], nn.Module]
    shape: list[int] | None
    batch: int
    steps: int
    target: float
    overrides: tuple[str, ...]


CASES = {
    "mlp": Case(model, [64], 32, 1000, 1.05, ("model.hidden=[64]",)),
    "cnn": Case(
        lambda: ResNet([3, 16, 16], 10, 16, [1, 1], 0.0), [3, 16, 16], 32, 150, 1.02,
        ("model=resnet", "model.width=16", "model.blocks=[1,1]"),
    ),
    "gpt": Case(
        lambda: GPT([WINDOW], VOCABULARY, 64, 2, 2, 0.0), None, 16, 150, 1.02,
        ("data=tokens", f"data.window={WINDOW}", "model=gpt", "model.width=64", "model.heads=2", "model.layers=2",
         "task=next_token"),
    ),
}  # fmt: skip


def data(case: Case) -> tuple[Tensor, Tensor]:
    if case.shape is None:
        tokens = torch.randint(VOCABULARY, (SIZE, WINDOW + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return torch.randn(SIZE, *case.shape), torch.randint(10, (SIZE,))


def bare(case: Case, steps: int, fused: bool) -> float:
    (x, y), net = data(case), case.net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    rows, done = torch.randperm(SIZE), 0
    for step in range(LOG_EVERY + steps):
        if step == LOG_EVERY:
            began = time.perf_counter()
        if done + case.batch > SIZE:
            rows, done = torch.randperm(SIZE), 0
        index = rows[done : done + case.batch]
        done += case.batch
        out = net(x[index])
        loss = F.cross_entropy(out.flatten(0, -2), y[index].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % LOG_EVERY == 0:
            loss.item()
    return (time.perf_counter() - began) / steps


def ours(case: Case, steps: int) -> float:
    from conftest import start_run

    with tempfile.TemporaryDirectory() as folder:
        own: tuple[str, ...] = ("data=synthetic", f"data.size={SIZE}", f"data.shape={case.shape}")
        if case.shape is None:
            path = Path(folder) / "tokens.h5"
            with h5py.File(path, "w") as file:
                for split, count in (("train", SIZE * WINDOW), ("val", 10 * WINDOW)):
                    made = np.random.default_rng(0).integers(VOCABULARY, size=count, dtype=np.uint8)
                    file[f"{split}/tokens"] = made
                    file[f"{split}/tokens"].attrs["classes"] = VOCABULARY
            own = (f"data.path={path}",)
        run = start_run(
            Path(folder) / "run", *case.overrides, *own, "logger=none", "hardware=cpu", "hardware.num_threads=1",
            f"trainer.global_batch_size={case.batch}", f"trainer.max_steps={LOG_EVERY + steps}",
            "trainer.max_epochs=null", f"trainer.log_every={LOG_EVERY}", "trainer.eval_every=null",
            "trainer.save_every=null", "trainer.max_eval_batches=1",
        )  # fmt: skip
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [line["perf/samples_per_s"] for line in lines if "perf/samples_per_s" in line]
    return case.batch * statistics.mean(1 / rate for rate in rates[1:])  # the first interval holds the start


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
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            self.took = time.perf_counter() - self.began

    batches = DataLoader(TensorDataset(*data(CASES["mlp"])), CASES["mlp"].batch, shuffle=True)
    module = Module()
    trainer = L.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=LOG_EVERY,
    )  # fmt: skip
    trainer.fit(module, batches)
    return module.took / steps


def ways_of(name: str, case: Case, steps: int) -> dict[str, Callable[[], float]]:
    ways: dict[str, Callable[[], float]] = {
        "bare PyTorch, fused optimizer": lambda: bare(case, steps, fused=True),
        "ours": lambda: ours(case, steps),
        "bare PyTorch": lambda: bare(case, steps, fused=False),
    }
    if name == "mlp":
        try:
            import lightning as _  # noqa: F401
        except ImportError:
            print("Lightning is not installed (pip install -e '.[bench]'): its rows are left out")
        else:
            ways["Lightning, defaults"] = lambda: lightning(steps, metrics=False)
            logged = "Lightning, metrics logged each step (lightning-hydra-template's way)"
            ways[logged] = lambda: lightning(steps, metrics=True)
    return ways


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
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"torch {torch.__version__}, {args.rounds} rounds\n")
    for name in args.cases:
        case = CASES[name]
        steps = max(LOG_EVERY, round(case.steps * args.scale / LOG_EVERY) * LOG_EVERY)
        ways = ways_of(name, case, steps)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _round in range(args.rounds):
            for way, measure in ways.items():
                with quiet():
                    times[way].append(measure())
        base = times["bare PyTorch, fused optimizer"]
        print(f"| {name}, {steps} steps | us per step | x bare, fused (target {case.target}) |\n|---|---|---|")
        for way, values in times.items():
            ratio = statistics.median(own / other for own, other in zip(values, base))
            print(f"| {way} | {statistics.median(values) * 1e6:.0f} | {ratio:.3f} |")
        print(flush=True)


if __name__ == "__main__":
    main()
