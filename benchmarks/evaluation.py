"""CPU time of an evaluation pass: ours and a bare loop in turns, in one process.

    ./run python benchmarks/evaluation.py [--rounds 20] [--rows 60000]

MLP 64-64-10, batches of 512 from memory, one thread; loss and accuracy, which must have equal bits in both ways. Bare
is what one writes by hand: slices of the set, a loss per sample, sums in float64. Ours also copies each batch, because
a transform or a metric may write into it. The table gives medians, and the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

BATCH = 512


@torch.no_grad()
def bare(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    loss, hits = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    for begin in range(0, len(x), BATCH):
        inputs, labels = x[begin : begin + BATCH], y[begin : begin + BATCH]
        output = net(inputs)
        loss += F.cross_entropy(output, labels, reduction="none").sum(dtype=torch.float64)
        hits += (output.argmax(1) == labels).sum()
    return loss.item() / len(x), hits.item() / len(x)


def measure(rounds: int, rows: int) -> list[tuple[float, float]]:
    """Return [(seconds of ours, of bare)], CPU time."""
    import common  # noqa: F401 - registers the program

    import lab.evaluation
    from samebits.testing import start_run

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    draw, score_split = np.random.default_rng(0), lab.evaluation.score_split
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "set.h5")
        with h5py.File(file, "w") as data:
            for split, count in (("train", BATCH), ("val", rows)):
                data[f"{split}/image"] = draw.standard_normal((count, 64)).astype(np.float32)
                data[f"{split}/label"] = draw.integers(0, 10, count)
            x, y = (torch.from_numpy(data[f"val/{name}"][()]) for name in ("image", "label"))

        def measured(model: nn.Module, *given: Any) -> dict[str, float]:
            net.load_state_dict(dict(zip(net.state_dict(), model.state_dict().values(), strict=True)))
            began = time.process_time()
            scores = score_split(model, *given)
            between = time.process_time()
            expected = bare(net, x, y)
            pairs.append((between - began, time.process_time() - between))
            assert (scores["val/loss"], scores["val/accuracy"]) == expected
            return scores

        with mock.patch.object(lab.evaluation, "score_split", measured):
            start_run(
                Path(folder, "run"), "model.hidden=[64]", f"data.path={file}", "data.splits.test=null",
                "data.loader=device",
                "logger=none", "hardware=cpu", "hardware.num_threads=1", f"trainer.global_batch_size={BATCH}",
                f"trainer.max_steps={rounds + 1}", "trainer.max_epochs=null", "trainer.eval_every=1",
                "trainer.save_every=null",
            )  # fmt: skip
    return pairs[1 : rounds + 1]  # the first one loads the set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=60_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pairs = measure(args.rounds, args.rows)
    ours, other = (statistics.median(column) * 1e3 for column in zip(*pairs))
    ratio = statistics.median(own / its for own, its in pairs)
    print(f"torch {torch.__version__}, {args.rounds} rounds of {args.rows:,} rows\n")
    print("| an evaluation pass | ours, ms | bare, ms | ours / bare |\n|---|---|---|---|")
    print(f"| CPU time | {ours:.1f} | {other:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
