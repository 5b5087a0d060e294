"""Checkpoints written beside the loop: the same bytes, of the state as it was, and never half of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from samebits.checkpoints import load_checkpoint
from samebits.testing import assert_equal, metrics, result, resume_run, start_run

RUN = (*QUICK, "trainer.max_steps=9", "trainer.save_every=2", "trainer.eval_every=3", "trainer.ema_decay=0.9")


def contents(run: Path) -> dict[str, Any]:
    return {path.name: load_checkpoint(path) for path in sorted((run / "checkpoints").iterdir())}


@pytest.mark.slow
def test_a_run_is_the_same_beside_and_waiting(tmp_path: Path) -> None:
    ranks = ("trainer=fsdp", "hardware.num_procs=2")
    beside = start_run(tmp_path / "beside", *RUN, *ranks)
    waits = start_run(tmp_path / "waits", *RUN, *ranks, "process.save_async=false")
    assert_equal(contents(beside), contents(waits))
    assert metrics(beside) == metrics(waits)
    assert result(beside)["val/loss"] == result(waits)["val/loss"]


@pytest.mark.slow
def test_a_resumed_run_holds_nothing_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither mapped nor in memory: the payload is let go when the state has it."""
    import lab.loop

    run = start_run(tmp_path / "run", *RUN, "trainer.max_steps=4")
    train_step, seen = lab.loop.train_step, []

    def step(loss_modules: Any, state: Any, *rest: Any) -> Any:
        maps = Path("/proc/self/maps").read_text().splitlines()
        seen.append([line for line in maps if str(tmp_path) in line and ".pt" in line])
        return train_step(loss_modules, state, *rest)

    monkeypatch.setattr(lab.loop, "train_step", step)
    resume_run(run, trainer__max_steps=9)
    assert seen == [[]] * 5
