"""What any task may hold and ask: rows of the training set, the names of the parts, not the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lab.tasks.supervised
from lab import build
from lab.restore import restore, score_checkpoint
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError
from samebits.testing import SMALL, compose, result, start_run


class Bank(Supervised):
    """A memory with a row for each training sample."""

    __module__ = "lab.tasks.supervised"

    def setup(self, model: nn.Module) -> None:
        self.register_buffer("bank", torch.zeros(self.run.epoch_samples, 2))
        self.register_buffer("steps", torch.zeros(self.run.total_steps))


class Holds(Supervised):
    __module__ = "lab.tasks.supervised"

    def setup(self, model: nn.Module) -> None:
        self.head = model[-1]  # type: ignore[index]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Bank, Holds):
        monkeypatch.setattr(lab.tasks.supervised, kind.__name__, kind, raising=False)


def run_of(kind: type) -> tuple[str, ...]:
    return (*SMALL, "model.hidden=[8]", f"task._target_=lab.tasks.supervised.{kind.__name__}")


@pytest.mark.slow
def test_a_memory_of_all_rows_is_there_for_whoever_loads_the_run(tmp_path: Path) -> None:
    folder = start_run(tmp_path / "run", *run_of(Bank))
    assert score_checkpoint(folder, "val", [])["loss"] == pytest.approx(result(folder)["val/loss"])
    task = restore(folder, "val", []).task
    assert (tuple(task.bank.shape), len(task.steps)) == ((1297, 2), 12)


def test_a_part_of_the_model_in_the_task_is_refused() -> None:
    """Scored would be a mix: what the task holds is the last weights', the model the average or the best."""
    line = r"^task: Holds\.head\.weight is the model's 2\.weight, but evaluations may use another model"
    with pytest.raises(ConfigError, match=line):
        build(compose(*run_of(Holds), "hardware=cpu"))
