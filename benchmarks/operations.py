"""Operations of one training step, by part: on a GPU each is about one launch, which small steps wait for. And its
Python calls, which a small step on a CPU spends its time on.

    ./run python benchmarks/operations.py

Counted on a CPU as torch dispatches them, without those that only make views or take memory. A GPU copies a batch
(one more a tensor), and Muon's matrices to bfloat16 and back (two more a shape).

Python calls are those of a whole turn of the loop in which nothing is logged, scored or saved: of functions of lab and
samebits (own), of functions that these call, such as a context of torch or contextlib (entered), and all. The
bare loop is that of benchmarks/step.py with the fused AdamW.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import h5py
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import bench

import lab.loop as loop
import lab.optimizer_step as optimizer_step
import train

# narrow layers, which have as many operations as wide ones; the last two have equal widths, as in the experiment
FAST = ("experiment=cifar10_fast", "data.path={cifar}", "task.count=64", "model.widths=[8,32,32]")
WAYS = {
    "default MLP, fp32": (),
    "default MLP, bf16": ("hardware.precision=bf16",),
    "cifar10_fast": FAST,
    "cifar10_fast, bf16": (*FAST, "hardware.precision=bf16"),
}
SMALL = ("data=synthetic", "data.size=4096", "data.shape=[64]", "model.hidden=[64]")
CALLS = {
    "MLP 64-64-10": (*SMALL, "optim.decay_norms_and_biases=true"),  # one group of parameters, as the bare loop
    "MLP 64-64-10, two groups": SMALL,
}
COMMON = ("logger=none", "hardware=cpu", "trainer.max_epochs=null", "trainer.max_steps=5", "trainer.eval_every=null",
          "trainer.max_eval_batches=1", "trainer.global_batch_size=32")  # fmt: skip
NO_KERNEL = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "slice", "detach",
    "alias", "split", "unbind", "as_strided", "split_with_sizes", "unfold", "diagonal", "empty", "empty_like",
    "new_empty", "empty_strided", "new_empty_strided", "_local_scalar_dense", "lift_fresh",
}  # fmt: skip
COUNTED = 3  # the number of the step: its optimizer's state is made, and its constants


class Counting(TorchDispatchMode):
    def __init__(self, parts: list[str], counts: Counter[str]) -> None:
        super().__init__()
        self.parts, self.counts = parts, counts

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.partition(".")[0]
        if function.namespace == "aten" and name not in NO_KERNEL:
            self.counts[self.parts[-1]] += 1
        return function(*args, **(kwargs or {}))


def counted(overrides: tuple[str, ...], folder: Path) -> Counter[str]:
    """{part: operations}: the batch and its transforms, the optimizer, all else."""
    parts, counts = ["else"], Counter[str]()
    step, update = loop.train_step, optimizer_step.update

    def batches_of(batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            parts.append("batch and transforms")
            batch = next(batches)
            parts.pop()
            yield batch

    def counting_step(loss_modules: Any, state: Any, batches: Any, *more: Any) -> Any:
        if state.step != COUNTED:
            return step(loss_modules, state, batches, *more)
        with Counting(parts, counts):
            return step(loss_modules, state, batches_of(batches), *more)

    def counting_update(*given: Any) -> None:
        parts.append("optimizer")
        update(*given)
        parts.pop()

    with (
        mock.patch.object(loop, "train_step", counting_step),
        mock.patch.object(optimizer_step, "update", counting_update),
    ):
        run(*overrides, f"hydra.run.dir={folder}")
    return counts


def run(*overrides: str) -> None:
    with (
        mock.patch.object(sys, "argv", ["train.py", *COMMON, *overrides]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        if train.main():
            raise SystemExit(said.getvalue())


class Calls:
    """Python calls while it is active: {own, entered, all: number}."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_filename == __file__:
            return
        self.counts["all"] += 1
        if is_own(frame):
            self.counts["own"] += 1
        elif frame.f_back is not None and is_own(frame.f_back):
            self.counts["entered"] += 1

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def is_own(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("lab", "samebits")


def calls_of_a_step(overrides: tuple[str, ...], folder: Path) -> Counter[str]:
    """{own, entered, all: Python calls} of one turn of the loop."""
    calls, is_finished = Calls(), loop.is_finished

    def counting(state: Any, context: Any) -> bool:  # begins each turn
        calls.__exit__()
        finished = is_finished(state, context)
        if state.step == COUNTED:
            calls.__enter__()
        return finished

    with mock.patch.object(loop, "is_finished", counting):
        run(*overrides, f"hydra.run.dir={folder}")
    return calls.counts


def calls_of_a_bare_step() -> int:
    block = bench.bare_block(bench.CASES["mlp"])
    counts = []
    for steps in (1, 2, 3):  # the first makes the optimizer's state; a block also looks at the loss
        with mock.patch.object(bench, "STEPS", steps):
            calls = Calls()
            with calls:
                block()
        counts.append(calls.counts["all"])
    return counts[2] - counts[1]


def main() -> None:
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        cifar = Path(made, "cifar.h5")
        with h5py.File(cifar, "w") as file:
            for split in ("train", "test"):
                file[f"{split}/image"] = draw.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
                file[f"{split}/label"] = np.arange(200) % 10
        print(f"torch {torch.__version__}\n\n| operations of a step | batch and transforms | optimizer | all |")
        print("|---|---|---|---|")
        for number, (name, way) in enumerate(WAYS.items()):
            counts = counted(tuple(text.format(cifar=cifar) for text in way), Path(made, str(number)))
            row = counts["batch and transforms"], counts["optimizer"], sum(counts.values())
            print(f"| {name} | {' | '.join(map(str, row))} |")
        print("\n| Python calls of a step | own | entered | all |\n|---|---|---|---|")
        for number, (name, way) in enumerate(CALLS.items()):
            found = calls_of_a_step(way, Path(made, f"calls{number}"))
            print(f"| {name} | {' | '.join(str(found[part]) for part in ('own', 'entered', 'all'))} |")
        print(f"| bare loop | | | {calls_of_a_bare_step()} |")


if __name__ == "__main__":
    main()
