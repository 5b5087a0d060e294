"""hardware.precision=auto: a GPU's by the size of a step; a run keeps what was decided, and is scored with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from common import QUICK

import lab.restore
from samebits.device import Hardware, auto, resolve_hardware
from samebits.process import rank
from samebits.testing import assert_equal, last_checkpoint, metrics, result, start_run


@pytest.mark.slow
def test_a_run_of_small_steps_is_one_in_fp32_and_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that takes itself for a GPU with bf16."""

    def as_gpu(*given: object) -> Hardware:
        machine = resolve_hardware(*given)  # type: ignore[arg-type]
        auto = given[0].precision == "auto"  # type: ignore[attr-defined]
        return replace(machine, precision="bf16", precision_is_auto=True) if auto else machine

    short = (*QUICK, "trainer.global_batch_size=60", "trainer.log_every=2", "trainer.eval_every=2")
    of_cpu = start_run(tmp_path / "of_cpu", *short, "trainer.max_steps=4")
    for module in (rank, lab.restore):
        monkeypatch.setattr(module, "resolve_hardware", as_gpu)
    small = start_run(tmp_path / "small", *short, "trainer.max_steps=4")
    assert "cpu, fp32 (a small step), threads: 1" in (small / "train.log").read_text()
    plain = start_run(tmp_path / "plain", *short, "trainer.max_steps=4", "hardware.precision=fp32")
    assert_equal(last_checkpoint(small)["model"], last_checkpoint(plain)["model"])
    monkeypatch.setattr(auto, "LAUNCHES_BOUND_FLOP", 1.0)
    large = start_run(tmp_path / "large", *short, "trainer.max_steps=4")
    half = start_run(tmp_path / "half", *short, "trainer.max_steps=4", "hardware.precision=bf16")
    assert_equal(last_checkpoint(large)["model"], last_checkpoint(half)["model"])
    assert metrics(large) != metrics(small)
    for run in (small, of_cpu, plain):
        start_run(run, *short, "trainer.max_steps=6", *(["hardware.precision=fp32"] if run == plain else []))
    for run in (small, of_cpu):
        assert_equal(last_checkpoint(run)["model"], last_checkpoint(plain)["model"])
        assert "cpu, fp32 (as when the run started), threads: 1" in (run / "train.log").read_text()
    assert lab.restore.score_checkpoint(small, "test", [])["loss"] == result(small)["test/loss"]
