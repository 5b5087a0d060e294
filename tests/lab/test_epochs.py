"""data.order=epochs: each ends with a whole batch, so steps, evaluations and logs fall on its end. docs/port_script.md
compares such a run with a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import plain
import pytest
import torch
from common import QUICK, ROOT
from torch.nn import functional as F

from lab.program import PROGRAM
from samebits.data import TrainPlan
from samebits.errors import ConfigError
from samebits.targets import locate
from samebits.testing import SMALL, WAYS, assert_undisturbed, broken_off, metrics, result, start_run, values

WALLS = (
    *QUICK, "trainer.max_epochs=3", "trainer.global_batch_size=300", "trainer.log_every=1ep", "trainer.eval_every=1ep",
    "trainer.save_every=1ep", "data.order._target_=samebits.data.order.epochs", "+data.order.batch_size=300",
)  # fmt: skip


def in_epochs(dataset: Any, seed: int, batch_size: int) -> Any:
    """Return the order that SMALLER asks for."""
    order = locate(PROGRAM, "samebits.data.order.epochs", "data.order")
    return order(dataset, seed, batch_size, drop_last=False)


@pytest.mark.slow
def test_an_epoch_is_a_whole_number_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,297 samples are 4 batches of 300: 12 steps, and not round(3 * 4.32); also where a run is killed and goes on,
    with as many epochs, and with one more."""
    straight, killed = start_run(tmp_path / "straight", *WALLS), tmp_path / "killed"
    assert result(straight)["step"] == 12
    assert [line["step"] for line in metrics(straight) if "val/loss" in line] == [4, 8, 12]
    assert values(straight, "train/epoch") == [1, 2, 3]
    assert_undisturbed(broken_off(killed, monkeypatch, [6], *WALLS), straight)
    with pytest.raises(ConfigError, match=r"global_batch_size=150: the run has trained 3,600 samples in 12 steps"):
        start_run(killed, *WALLS, "trainer.global_batch_size=150", "data.order.batch_size=150", "trainer.max_epochs=4")
    start_run(killed, *WALLS, "trainer.max_epochs=4")
    assert result(killed)["step"] == 16


SMALLER = (
    *SMALL, *plain.PLAIN, "model.hidden=[8]", "trainer.max_steps=null", "trainer.max_epochs=2",
    "trainer.global_batch_size=300", "trainer.log_every=1", "data.order._target_=samebits.data.order.epochs",
    "+data.order.drop_last=false", "trainer.eval_every=1ep", "trainer.save_every=3", "seed=3",
)  # fmt: skip


@pytest.mark.slow
def test_the_smaller_batch_of_an_epoch_is_what_a_plain_loop_makes_of_it(tmp_path: Path) -> None:
    """1,297 samples are 4 batches of 300 and one of 97: losses, gradients and weights are those of their means, for any
    ranks and micro-batches."""
    model = plain.first_weights(*SMALLER)
    with h5py.File(ROOT / "data" / "digits.h5") as file:
        x, y = (torch.from_numpy(file["train"][name][:]) for name in ("image", "label"))
    order, losses = in_epochs(x, 3, 300), []
    for step in range(10):
        numbers = np.arange(step * 300, step * 300 + (97 if step % 5 == 4 else 300))
        rows = torch.from_numpy(order(numbers))
        if step % 5 == 0:
            seen = rows
        elif step % 5 == 4:
            assert sorted(torch.cat([seen, rows]).tolist()) == list(range(1297))
        else:
            seen = torch.cat([seen, rows])
        loss = F.cross_entropy(model(x[rows].float() / 255), y[rows].long())
        losses.append(loss.item())
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
            p.data -= 0.1 * g
    folder = start_run(tmp_path / "one", *SMALLER)
    plain.assert_trained(folder, model)
    assert values(folder, "train/loss") == pytest.approx(losses, rel=1e-4)
    assert [line["step"] for line in metrics(folder) if "val/loss" in line] == [5, 10]
    ways = WAYS["2 ranks, micro-batches"]
    plain.assert_trained(start_run(tmp_path / "two", *SMALLER, *ways), model)


@pytest.mark.slow
def test_a_smaller_batch_is_killed_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, behind a save in the middle of an epoch."""
    workers = ("data.loader=workers", "data.num_workers=2")
    run = (*SMALLER, "trainer.max_epochs=3", "hardware.micro_batch_size=70", *workers)
    straight = start_run(tmp_path / "straight", *run)
    assert result(straight)["step"] == 15
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [11], *run), straight)


@pytest.mark.parametrize(("size", "batch"), [(10, 4), (8, 4), (3, 8), (13, 12)])
def test_each_row_counts_once_an_epoch(size: int, batch: int) -> None:
    """Whatever the ranks; padding has the number -1."""
    order = in_epochs(range(size), 0, batch)
    steps = -(-size // batch)
    assert order.epoch_samples == steps * batch
    for ranks in (1, 2):
        counted: list[int] = []
        for rank in range(ranks):
            plan = TrainPlan(order, batch, [batch // ranks], rank, ranks, 2 * steps * batch)
            for numbers, rows in map(plan, range(steps)):
                assert len(numbers) == len(rows) == batch // ranks
                counted += rows[numbers >= 0].tolist()
        assert sorted(counted) == list(range(size))
