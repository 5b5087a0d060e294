"""task=distillation: a frozen network beside the model, kept once in the run's folder."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import needs
from shipped import Stateless
from torch.nn import functional as F

from lab import build, load_run
from lab.config import Config
from lab.experiment import Experiment
from lab.models.mlp import MLP
from lab.restore import restore, score_checkpoint
from lab.tasks.distillation import Distillation
from samebits.errors import ConfigError, RunFailed
from samebits.testing import SMALL, Killed, compose, last_checkpoint, raise_at_step, resume_run, start_run

TRAINED = ("model.hidden=[24]", "optim.lr=3e-2", "trainer.max_steps=50", "trainer.eval_every=null")
pytestmark = needs("data/digits.h5")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("teacher") / "run", *SMALL, *TRAINED)


class TestDistillation(Stateless):
    loss_names = ("cross_entropy", "distance")
    monitor = "distance"

    @pytest.fixture
    def run(self, teacher: Path) -> tuple[str, ...]:
        return ("task=distillation", f"task.teacher={teacher}", "model.hidden=[32]", "optim.lr=3e-2")


@pytest.mark.slow
def test_it_is_hinton_s_loss(tmp_path: Path, teacher: Path) -> None:
    run = (*SMALL, "task=distillation", "trainer.max_steps=1")
    folder = start_run(tmp_path / "run", *run, f"task.teacher={teacher}")
    own, batch = restore(folder, "val", []), {"x": torch.rand(5, 1, 8, 8), "y": torch.arange(5)}
    losses, output = own.task.losses(own.model, batch)
    assert isinstance(losses, dict)
    soft = F.softmax(restore(teacher, "val", []).model(batch["x"]) / 4, 1)
    distance = 16 * (soft * (soft.log() - F.log_softmax(output / 4, 1))).sum(1)
    own_loss = 0.1 * F.cross_entropy(output, batch["y"], reduction="none")
    torch.testing.assert_close(losses["distance"], distance)
    torch.testing.assert_close(losses["loss"], own_loss + 0.9 * distance)
    with pytest.raises(ConfigError, match="no such run directory or checkpoint"):
        start_run(tmp_path / "other", *run, f"task.teacher={tmp_path / 'nowhere'}")


def test_the_teacher_stays_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teacher: Path) -> None:
    """Once, in no checkpoint; the run goes on and scores where it was moved to and its teacher has gone."""
    theirs = tmp_path / "theirs"
    shutil.copytree(teacher, theirs)
    run = ("task=distillation", f"task.teacher={theirs}", "model.hidden=[16]")
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        raise_at_step(patch, 7, Killed)
        with pytest.raises((Killed, RunFailed)):
            start_run(folder, *SMALL, *run)
    held = last_checkpoint(folder)
    assert not held["task"]
    assert (folder / "frozen/teacher.pt").is_file()
    shutil.rmtree(theirs)
    moved = folder.rename(tmp_path / "moved")
    resume_run(moved)
    assert last_checkpoint(moved)["step"] == 12
    assert score_checkpoint(moved, "val", [])["distance"] > 0
    (moved / "frozen/teacher.pt").unlink()
    with pytest.raises(
        ConfigError, match=r"frozen/teacher\.pt: is missing; it contains the run's frozen network teacher"
    ):
        score_checkpoint(moved, "val", [])


def test_a_loaded_task_has_the_run_s_random_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teacher: Path
) -> None:
    """Which no checkpoint has. The teacher has those of its own run, also after a resume of the student's."""
    for kind in (MLP, Distillation):

        def with_constants(self: Any, *args: Any, built: Any = kind.__init__, **kwargs: Any) -> None:
            built(self, *args, **kwargs)
            self.constants = [torch.rand(3), np.random.rand(3), random.random()]

        monkeypatch.setattr(kind, "__init__", with_constants)
    # a resume and an evaluation do not call it
    monkeypatch.setattr(Distillation, "initialize", lambda self, model, batches: f"drawn: {torch.rand(1)}")
    monkeypatch.setattr(Distillation, "setup", lambda self, model: self.constants.append(torch.rand(3)))

    def constants(task: Any) -> str:
        return str([task.constants, task.frozen_networks["teacher"].constants])

    run = (*SMALL, "task=distillation", f"task.teacher={teacher}", "model.hidden=[16]", "seed=5")
    parts = build(compose(*run))
    parts.close()
    wanted, folder = constants(parts.task), start_run(tmp_path / "run", *run, "trainer.max_steps=1")
    before = torch.get_rng_state()
    assert str(load_run(teacher)[0].constants) in wanted
    assert constants(restore(folder, "val", ["seed=7"]).task) == wanted
    assert constants(load_run(folder)._task) == wanted
    assert torch.equal(torch.get_rng_state(), before)
    experiment = Experiment.of_first_rank(Config.of(compose(*run)), apply=False)
    assert constants(experiment.build_model_and_task(is_new=False, directory=folder)[1]) == wanted  # as a resume does
