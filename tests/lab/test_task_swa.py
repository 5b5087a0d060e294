"""task=swa: the mean of weights is what is scored and given, with BatchNorm's statistics of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import plain
import pytest
import torch
from common import ROOT, needs
from shipped import Shipped
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, update_bn

from lab import load_run, loaders
from lab.builders import make_task
from lab.config import Config
from lab.experiment import Experiment
from lab.loaders import make_bn_loader
from lab.restore import score_checkpoint
from lab.state import model_or_average
from samebits.checkpoints import export
from samebits.errors import ConfigError
from samebits.testing import (
    SMALL,
    assert_equal,
    assert_undisturbed,
    broken_off,
    compose,
    last_checkpoint,
    metrics,
    poison,
    result,
    start_run,
)

pytestmark = needs("data/digits.h5")
RESNET = ("task=swa", "model=resnet", "model.width=4", "model.blocks=[1]", "task.statistics=1000",
          "task.start=0.4", "task.every=2", "hardware.eval_batch_size=100", "trainer.keep_best=0")  # fmt: skip


class TestSWA(Shipped):
    averages = True

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("task=swa", "model.hidden=[32]", "optim.lr=1e-2", "task.start=0.5", "task.every=2")


def whole(split: str) -> Iterator[tuple[Tensor, Tensor]]:
    with h5py.File(ROOT / "data" / "digits.h5") as file:
        x, y = (torch.from_numpy(file[split][name][:]) for name in ("image", "label"))
    yield from zip((x.float() / 255).split(100), y.long().split(100))


def in_plain_torch(model: nn.Module, skipped: int | None = None) -> nn.Module:
    """The mean of the weights after steps 2 and 4 of 5, with the statistics of all training images."""
    optimizer, mean = torch.optim.SGD(model.parameters(), lr=0.1), AveragedModel(model)
    for step, (x, y) in enumerate(plain.batches()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if step != skipped:
            optimizer.step()
        if step + 1 in (2, 4):
            mean.update_parameters(model)
    update_bn((x for x, _ in whole("train")), mean)
    return mean.module.eval()


@pytest.mark.slow
def test_it_is_torchs_average_and_update_bn(tmp_path: Path) -> None:
    """And that is what is in result.json, evaluated, loaded and exported."""
    run = (*SMALL, *RESNET, *plain.PLAIN)
    wanted = in_plain_torch(plain.first_weights(*run))
    folder = start_run(tmp_path / "run", *run)
    held = last_checkpoint(folder)["ema"]
    assert sum("running" in name for name in held) == 6
    torch.testing.assert_close(held, dict(wanted.state_dict()), rtol=1e-4, atol=1e-6)
    export(folder, tmp_path / "weights.pt", overwrite=False)
    assert_equal(torch.load(tmp_path / "weights.pt", weights_only=True), held)
    assert_equal(dict(load_run(folder)[0].state_dict()), held)
    with torch.no_grad():
        losses = torch.cat([F.cross_entropy(wanted(x), y, reduction="none") for x, y in whole("val")])
    assert result(folder)["val/loss"] == pytest.approx(losses.mean().item(), rel=1e-4)
    assert score_checkpoint(folder, "val", [])["loss"] == pytest.approx(losses.mean().item(), rel=1e-4)


def test_a_skipped_step_counts_with_the_weights_that_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a loop with GradScaler that calls `update_parameters`; otherwise earlier weights would count twice."""
    run = (*SMALL, "task=swa", "task.start=0.4", "task.every=2", *plain.PLAIN, "trainer.non_finite=skip")
    poison(monkeypatch, step=3, rank=0)
    folder = start_run(tmp_path / "run", *run)
    assert any(line.get("train/skipped_steps") for line in metrics(folder))
    wanted = in_plain_torch(plain.first_weights(*run), skipped=3)
    torch.testing.assert_close(last_checkpoint(folder)["ema"], dict(wanted.state_dict()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_killed_while_it_averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, the statistics too: they are made anew at each evaluation and save, and leave training as it was."""
    run = (*SMALL, *RESNET)
    straight = start_run(tmp_path / "straight", *run)
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [11], *run), straight)


@pytest.mark.parametrize("statistics", [0, 3])
def test_other_statistics_are_the_model_s(statistics: int) -> None:
    """Only BatchNorm's are made anew, so only these are left as they are."""
    task = nn.Module()
    task.bn_update_batches = statistics  # type: ignore[assignment]
    model = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.BatchNorm1d(2))
    state = SimpleNamespace(model=model, task=task, ema=copy.deepcopy(model))
    model(torch.randn(5, 2, 3))
    mean: Any = model_or_average(state)  # type: ignore[arg-type]
    assert torch.equal(mean[0].running_mean, model[0].running_mean)
    assert torch.equal(mean[1].running_mean, model[1].running_mean) == (statistics == 0)


@pytest.mark.parametrize(("ranks", "sizes"), [(1, [25, 25, 10]), (7, [8] * 7)])
def test_the_statistics_are_of_no_row_twice(monkeypatch: pytest.MonkeyPatch, ranks: int, sizes: list[int]) -> None:
    """Evaluation batches may be padded with copies of a row: if they are compiled, and if the ranks have other numbers
    of rows."""
    monkeypatch.setattr(loaders, "CompiledChain", lambda transform: transform)  # compiling takes 8 s
    run = (*SMALL, *RESNET, "task.statistics=5", "hardware.eval_batch_size=25", "hardware.compile=true")
    experiment = Experiment.of_first_rank(Config.of(compose(*run)), apply=False)
    config, train, images = experiment.config, experiment.sets["train"], list[Tensor]()
    with experiment.train_loader() as like:
        for rank in range(ranks):
            world = replace(experiment.world, rank=rank, size=ranks)
            loader = make_bn_loader(config, experiment.hardware, train, world, make_task(config), like)
            assert loader is not None
            with loader:
                images += [batch["x"] for batch in loader]
    assert [len(part) for part in images] == sizes  # of 5 batches of 12
    assert len(torch.cat(images).flatten(1).unique(dim=0)) == sum(sizes)


@pytest.mark.slow
def test_one_average_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.ema_decay=0\.9: SWA averages the weights too"):
        start_run(tmp_path, *SMALL, "task=swa", "trainer.ema_decay=0.9")
