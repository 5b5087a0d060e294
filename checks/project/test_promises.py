"""The tests that every method inherits fail where something is wrong, say what, and pass where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lab.tasks.supervised import Supervised
from samebits import testing
from samebits.errors import ConfigError, RunFailed
from samebits.testing import TaskTests, start_run

SMALL = (*testing.SMALL, "model.hidden=[16]")


def skipped(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **attributes: Any) -> None:
    """The test of a skipped step, of a method with these attributes."""
    kind = type("TestMine", (TaskTests,), attributes)
    kind().test_a_skipped_step_changes_nothing(folder, monkeypatch, (*SMALL, *more), 1)


def test_a_callback_may_change_what_the_task_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each evaluation, as one that labels rows anew does."""
    import lab.callbacks.base

    class Relabels(lab.callbacks.base.Callback):
        __module__ = "lab.callbacks.base"

        def on_eval(self, state: Any, scores: dict[str, float]) -> None:
            state.task.labels += 1

    def setup(self: Supervised, model: nn.Module) -> None:
        self.register_buffer("labels", torch.zeros(3))

    monkeypatch.setattr(lab.callbacks.base, "Relabels", Relabels, raising=False)
    monkeypatch.setattr(Supervised, "setup", setup)
    skipped(tmp_path, monkeypatch, "+callback.relabels._target_=lab.callbacks.base.Relabels")


def test_losses_that_cannot_read_nan_are_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(self: Supervised, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        tokens = (batch["x"] * 3).long()  # of NaN: no row of a table
        return model(nn.functional.embedding(tokens, torch.ones(4, 1)).squeeze(-1))

    monkeypatch.setattr(Supervised, "predict", predict)
    with pytest.raises(
        RunFailed, match=r"^your losses fail for batches of NaN, .*: IndexError: .* `reads_nan = False`"
    ):
        skipped(tmp_path / "a", monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(Supervised, "predict", predict)
    skipped(tmp_path / "b", monkeypatch, reads_nan=False)


@pytest.mark.parametrize("waits", [False, True])
def test_a_task_may_wait_where_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    def predict(self: Supervised, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        batch["x"].cpu()
        return model(batch["x"])

    straight = start_run(tmp_path / "straight", *SMALL)
    monkeypatch.setattr(Supervised, "predict", predict)
    monkeypatch.setattr(Supervised, "reads_device", waits)

    def asked() -> None:
        TaskTests().test_no_step_waits_for_the_device(tmp_path / "run", monkeypatch, SMALL, straight, "bf16")

    if waits:
        asked()
    else:
        with pytest.raises(
            (RunFailed, ConfigError), match=r"Tensor\.cpu waits for the device, in .*test_promises\.py:\d+: batch\["
        ):
            asked()
