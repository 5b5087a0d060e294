"""Our loop beside a bare PyTorch loop, in turns within the same processes; and how long a save holds the loop up.

    ./run bench [--cases mlp cnn gpt ranks wide save] [--blocks 40] [--cpu] [--record]

CPU alone, one thread a rank, data in memory, AdamW (fused), clipped at norm 1, the loss logged each 50 steps. Bare is
what one writes by hand: zero_grad, forward, backward, clip_grad_norm_, step; with two ranks DDP as torch sets it up
(gloo). After each log of the run, its process takes as many bare steps, so that both see the same machine. Ours is all
that the loop does: data, log, watchdog, balance of the ranks, agreeing to go on. The table gives medians over these
blocks, and over the ratios of neighbours. save: benchmarks/save.py.

--cpu measures the CPU time of a process instead of the time that passes: for a machine on which other work runs. What
a rank waits for the other one is then left out.

--record writes the table and its picture, bench.svg, into RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

SIZE, WINDOW, VOCABULARY, STEPS = 4096, 64, 256, 50
WARM_UP = 3  # blocks
BEGIN, END = "<!-- ./run bench --record -->", "<!-- end of ./run bench -->"


@dataclass(frozen=True)
class Case:
    """batch: samples of a rank. shape: of a sample of x; None: tokens. target: most of ours / bare, time of a step."""

    title: str
    batch: int
    shape: list[int] | None
    target: float
    overrides: tuple[str, ...]
    ranks: int = 1


RESNET = ("model=resnet", "model.width=16", "model.blocks=[1,1]")
GPT = ("data=tokens", f"data.window={WINDOW}", "model=gpt", "model.width=64", "model.heads=2", "model.layers=2",
       "task=next_token")  # fmt: skip
CASES = {
    "mlp": Case("MLP 64-64-10, batch 32", 32, [64], 1.0, ("model.hidden=[64]",)),
    "cnn": Case("small CNN, batch 32 of 3 x 16 x 16", 32, [3, 16, 16], 1.02, RESNET),
    "gpt": Case(f"small GPT, batch 16 x {WINDOW} tokens", 16, None, 1.02, GPT),
    "ranks": Case("MLP 64-64-10, 2 ranks x 32", 32, [64], 1.03, ("model.hidden=[64]",), ranks=2),
    "wide": Case("MLP 64-512-512-10, 2 ranks x 32", 32, [64], 1.03, ("model.hidden=[512,512]",), ranks=2),
}
SAVE, SAVE_TARGET = "100 MB checkpoint beside the loop, time the loop stands / torch.save", 0.2


# ---- one case, in a process of its own


def bare_block(case: Case) -> Callable[[], None]:
    """Returns a function that does STEPS steps by hand, and then looks at the loss."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from lab.models.gpt import GPT
    from lab.models.resnet import ResNet

    if case.shape is None:
        tokens = torch.randint(VOCABULARY, (SIZE, WINDOW + 1))
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        net: nn.Module = GPT([WINDOW], VOCABULARY, 64, 2, 2, 0.0)
    else:
        x, y = torch.randn(SIZE, *case.shape), torch.randint(10, (SIZE,))
        if len(case.shape) > 1:
            net = ResNet(case.shape, 10, 16, [1, 1], 0.0)
        else:
            hidden = json.loads(case.overrides[0].partition("=")[2])
            layers = [layer for a, b in zip([64, *hidden], hidden) for layer in (nn.Linear(a, b), nn.ReLU())]
            net = nn.Sequential(*layers, nn.Linear(hidden[-1], 10))
    if case.ranks > 1:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    rows, done = torch.randperm(SIZE), 0

    def block() -> None:
        nonlocal rows, done
        for _ in range(STEPS):
            if done + case.batch > SIZE:
                rows, done = torch.randperm(SIZE), 0
            index = rows[done : done + case.batch]
            done += case.batch
            output, target = net(x[index]), y[index]
            if case.shape is None:
                output, target = output.flatten(0, 1), target.flatten()
            loss = F.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        total = loss.detach()
        if case.ranks > 1:
            dist.all_reduce(total)
        total.item()

    return block


def measure(case: Case, blocks: int, file: Path, cpu: bool = False) -> None:
    """Write [(seconds of a step of ours, of a bare one)], one pair for each block, into `file`."""
    clock = time.process_time if cpu else time.perf_counter
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    import common  # noqa: F401 - registers the program

    import lab.loop
    from samebits.testing import start_run

    log_train, began = lab.loop.log_train, clock()
    block: Callable[[], None] | None = None
    pairs: list[tuple[float, float]] = []

    def log_and_take_bare_steps(*given: Any) -> None:  # a callback would add its own cost: random states
        nonlocal began, block
        log_train(*given)
        ours_end = clock()
        block = block or bare_block(case)
        block()
        bare_end = clock()
        pairs.append(((ours_end - began) / STEPS, (bare_end - ours_end) / STEPS))
        if len(pairs) == WARM_UP + blocks and int(os.environ.get("RANK", 0)) == 0:
            file.write_text(json.dumps(pairs[WARM_UP:]))
        began = clock()

    lab.loop.log_train = log_and_take_bare_steps
    with tempfile.TemporaryDirectory() as folder:
        data = ["data=synthetic", f"data.size={SIZE}", f"data.shape={case.shape}"]
        if case.shape is None:
            data = [f"data.path={write_tokens(Path(folder) / 'tokens.h5')}"]
        ranks = ["trainer=ddp", f"hardware.num_procs={case.ranks}"] if case.ranks > 1 else []
        start_run(
            Path(folder) / "run", *case.overrides, *data, *ranks, "logger=none", "hardware=cpu",
            "hardware.num_threads=1", f"trainer.global_batch_size={case.batch * case.ranks}",
            f"trainer.max_steps={STEPS * (blocks + WARM_UP)}", "trainer.max_epochs=null", f"trainer.log_every={STEPS}",
            "trainer.eval_every=null", "trainer.save_every=null", "trainer.max_eval_batches=1",
            "optim.decay_norms_and_biases=true",  # one group of parameters: the same optimizer
        )  # fmt: skip


def write_tokens(path: Path) -> Path:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        for split, count in (("train", SIZE * WINDOW), ("val", 10 * WINDOW)):
            file[f"{split}/tokens"] = np.random.default_rng(0).integers(VOCABULARY, size=count, dtype=np.uint8)
            file[f"{split}/tokens"].attrs["classes"] = VOCABULARY
    return path


# ---- all of them


class Failed(Exception):
    """What a case printed when it ended with an error."""


@dataclass(frozen=True)
class Row:
    title: str
    bare: float
    ours: float
    ratio: float
    target: float


def row_of(name: str, blocks: int, cpu: bool = False) -> Row:
    if name == "save":
        return row_of_save(min(blocks, 9))
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.json"
        command = [sys.executable, __file__, "--one", name, "--blocks", str(blocks), "--file", str(file)]
        command += ["--cpu"] * cpu
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode or not file.exists():
            raise Failed(f"{name}: status {done.returncode}\n{done.stdout[-4000:]}")
        pairs = json.loads(file.read_text())
    ours, bare = (statistics.median(column) for column in zip(*pairs))
    return Row(case.title, bare, ours, statistics.median(own / other for own, other in pairs), case.target)


def row_of_save(rounds: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "save.json"
        command = [sys.executable, str(HERE / "save.py"), "--rounds", str(rounds), "--file", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Failed(f"save: status {done.returncode}\n{done.stdout[-4000:]}")
        blocked = json.loads(file.read_text())
    bare, ours = (statistics.median(blocked[way]) for way in ("torch.save", "save_async=true"))
    return Row(SAVE, bare, ours, ours / bare, SAVE_TARGET)


def head() -> str:
    import torch

    where = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    lines = [f"{date.today()}, {where}. A ratio in **bold** misses its target.", ""]
    return "\n".join([*lines, "| | bare, ms | ours, ms | ours / bare | target |", "|---|---|---|---|---|"])


def line(row: Row) -> str:
    ratio = f"{row.ratio:.3f}" if row.ratio <= row.target else f"**{row.ratio:.3f}**"
    return f"| {row.title} | {row.bare * 1e3:.3g} | {row.ours * 1e3:.3g} | {ratio} | <= {row.target:.2f} |"


def table(rows: list[Row]) -> str:
    return "\n".join([head(), *map(line, rows)])


def draw(rows: list[Row], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bench"  # the same figures, the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.55 * len(rows) + 1.1), layout="constrained")
    for i, row in enumerate(rows):
        axes.barh(i, row.ratio, height=0.55, color="#2f6f9f" if row.ratio <= row.target else "#c0504d")
        axes.plot([row.target, row.target], [i - 0.4, i + 0.4], color="black", linewidth=1.5)
        axes.annotate(f"{row.ratio:.2f}", (row.ratio, i), xytext=(-4, 0), textcoords="offset points", ha="right",
                      va="center", color="white", fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.25, *(row.ratio * 1.05 for row in rows)))
    axes.set_xlabel("time, ours / bare PyTorch (black: target; shorter is faster)", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def record(text: str) -> None:
    results = HERE / "RESULTS.md"
    before, begin, rest = results.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{results}: has no {BEGIN} ... {END}")
    results.write_text(f"{before}{BEGIN}\n\n{text}\n\n![ours beside bare PyTorch](bench.svg)\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        "./run bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "save"], default=[*CASES, "save"])
    parser.add_argument("--blocks", type=int, default=40, help=f"of {STEPS} steps each way")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of the time that passes")
    parser.add_argument("--record", action="store_true", help="write table and picture into RESULTS.md")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(CASES[args.one], args.blocks, args.file, args.cpu)
        return 0
    rows, failed = [], []
    print(head(), flush=True)
    for name in args.cases:
        try:
            rows.append(row_of(name, args.blocks, args.cpu))
            print(line(rows[-1]), flush=True)
        except Failed as error:  # the other cases are measured all the same
            failed.append(str(error))
    if args.record and not failed:
        draw(rows, HERE / "bench.svg")
        record(table(rows))
    for said in failed:
        print(f"\nerror: {said}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
