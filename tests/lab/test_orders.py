"""Data that follow the model: a run whose order changes with its losses, killed around each change, is the same run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import ROOT
from torch import Tensor, nn

import lab.datasets.h5
import lab.run
import lab.tasks.supervised
from lab.callbacks.base import Callback
from lab.rows import by_row
from lab.tasks.base import Batch, Losses
from lab.tasks.supervised import Supervised
from samebits.data import SampleRNG
from samebits.errors import ConfigError, RunFailed
from samebits.testing import SMALL, WAYS, Killed, assert_undisturbed, last_checkpoint, resume_run, start_run, values
from samebits.testing.processes import sample_of

DIGITS = ROOT / "data" / "digits.h5"


class Weighted:
    """Rows in proportion to their weights."""

    __module__ = "lab.datasets.h5"

    def __init__(self, dataset: Any, seed: int) -> None:
        self.draws, self.weights = SampleRNG(seed, "Weighted"), torch.ones(len(dataset))

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        ends = self.weights.double().cumsum(0)
        draws = self.draws.uniform(torch.tensor(numbers), 1)[:, 0].double() * ends[-1]
        return torch.searchsorted(ends, draws, right=True).numpy()

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


class Miner(Callback):
    """Changes the weights after each step and by the losses at each evaluation; puts them in use at some of these."""

    kills: list[tuple[str, int]] = []  # noqa: RUF012

    def before_step(self, state: Any) -> None:
        self.at("next", state)
        if state.step == 7:
            self.run.reorder()

    def on_step(self, state: Any) -> None:
        self.run.order.weights[state.step] += 100  # in place, and in use later
        self.at("before", state)
        if state.step in (3, 5, 6):
            self.run.reorder()
        self.at("after", state)

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        def losses(model: nn.Module, batch: Batch) -> Tensor:
            found: Any = state.task.losses(model, batch)[0]
            return found if isinstance(found, Tensor) else found["loss"]

        order = self.run.order
        order.weights = by_row(state, self.run, np.arange(len(order.weights)), losses) ** 4
        self.run.reorder()
        self.at("evaluated", state)

    def at(self, where: str, state: Any) -> None:
        if (where, state.step) in Miner.kills:
            Miner.kills.remove((where, state.step))
            raise Killed


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.datasets.h5, "Weighted", Weighted, raising=False)


RUN = (
    *SMALL, "model.hidden=[16]", "optim.lr=1e-2", "trainer.ema_decay=0.5",
    "data.order._target_=lab.datasets.h5.Weighted",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("data.loader=workers", "data.num_workers=2")])
def test_killed_around_a_reorder_is_undisturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[..., None], more: tuple[str, ...]
) -> None:
    """Before it, behind it, between it and its checkpoint, and where a changed state waits for its reorder."""
    use(Miner())
    straight, killed = start_run(tmp_path / "straight", *RUN, *more), tmp_path / "killed"
    kills = [("before", 3), ("evaluated", 4), ("next", 5), ("after", 6), ("before", 11)]
    if more:  # batches that are read ahead: of an order that waits, of one in use
        kills = sample_of([("evaluated", 4), ("after", 6)], kills)
    monkeypatch.setattr(Miner, "kills", kills)
    for _ in range(len(kills) + 1):
        with suppress(Killed, RunFailed):
            resume_run(killed) if killed.exists() else start_run(killed, *RUN, *more)
    assert Miner.kills == []
    assert_undisturbed(killed, straight)
    saved = last_checkpoint(straight)["order"]
    assert not torch.equal(saved["order"]["weights"], torch.ones(1297))


@pytest.mark.slow
def test_ranks_and_micro_batches_change_nothing(tmp_path: Path, use: Callable[..., None]) -> None:
    """The rows that are drawn too, or the losses would be others."""
    use(Miner())
    run = (*RUN, "trainer.log_every=1")
    one = start_run(tmp_path / "one", *run)
    two = start_run(tmp_path / "two", *run, *WAYS["2 ranks, micro-batches"])
    assert values(two, "train/loss") == pytest.approx(values(one, "train/loss"), rel=1e-4)
    assert len(values(one, "train/loss")) == 12
    mine, theirs = last_checkpoint(two), last_checkpoint(one)
    for part in ("model", "ema"):
        torch.testing.assert_close(mine[part], theirs[part], rtol=1e-3, atol=1e-5)
    for which in ("order", "in_use"):
        torch.testing.assert_close(mine["order"][which]["weights"], theirs["order"][which]["weights"])


class Named(Supervised):
    """A sample is what the file has in its row, in training and in evaluation."""

    __module__ = "lab.tasks.supervised"
    needs_sample_ids = True

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        with h5py.File(DIGITS) as file:
            images = torch.from_numpy(file["train/image" if self.training else "val/image"][:]) / 255
        counted = batch["row"] >= 0
        assert torch.equal(batch["x"][counted], images[batch["row"][counted]])
        assert self.training or torch.equal(batch["row"], batch["sample_id"])
        return super().losses(model, batch)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), [("device", "2 ranks"), ("workers", "micro-batches")])
def test_a_batch_says_which_rows_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str) -> None:
    monkeypatch.setattr(lab.tasks.supervised, "Named", Named, raising=False)
    loader = (
        f"data.loader={kind}",
        "data.num_workers=2",
        "trainer.pad_eval_batches=true",
        "hardware.eval_batch_size=99",
    )
    start_run(
        tmp_path, *SMALL, *WAYS[way], *loader, "task._target_=lab.tasks.supervised.Named", "model.hidden=[8]",
        "trainer.max_steps=4", "data.order._target_=lab.datasets.h5.Weighted", "data.splits.test=null",
    )  # fmt: skip


class Parting(Callback):
    def on_step(self, state: Any) -> None:
        self.run.order.weights[0] = self.run.world.rank
        self.run.reorder()


class InEvaluation(Callback):
    def on_eval_batch(self, output: Any, batch: Any) -> None:
        self.run.reorder()


class Reorders(Callback):
    def on_step(self, state: Any) -> None:
        self.run.reorder()


class Lends(Callback):
    """Gives the order a tensor that is somebody's, and goes on with it."""

    def on_step(self, state: Any) -> None:
        if state.step == 1:
            Lends.lent = torch.ones(1297)
            self.run.order.weights = Lends.lent
            self.run.reorder()
        Lends.lent += 1


@pytest.mark.slow
def test_a_tensor_that_is_given_to_an_order_is_its_own_from_the_reorder_on(
    tmp_path: Path, use: Callable[..., None]
) -> None:
    use(Lends())
    folder = start_run(tmp_path / "run", *RUN, "trainer.max_steps=3")
    assert torch.equal(read_order(folder)["weights"], torch.ones(1297))


def read_order(folder: Path) -> Any:
    return last_checkpoint(folder)["order"]["order"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "run", "message"),
    [
        (Parting(), (*RUN, *WAYS["2 ranks"]), "no longer have the same data.order's state order weights at step 1"),
        (InEvaluation(), RUN, r"run.reorder\(\): not allowed during an evaluation.*on_eval"),
        (Reorders(), SMALL, "data.order has no state - choose an order.*state_dict and load_state_dict"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[..., None], callback: Callback,
    run: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    use(callback)
    with pytest.raises((ConfigError, RunFailed), match=message) as caught:
        start_run(tmp_path, *run)
    assert len(str(caught.value).splitlines()) == 1
