"""hardware.precision=auto: a GPU's by the size of a step; a run keeps what was decided, and is scored with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import QUICK, assert_equal, last_checkpoint, metrics, result, start_run

import lab.restore
import lab.run
from engine.device import Hardware, as_run_began, resolve_hardware, settle, settled, settling
from engine.device.threads import Threads
from engine.world import World

ALONE = World(0, 1, 0, torch.device("cpu"))
GPU = Hardware("cuda", 1, "bf16", Threads(1, 1, "", auto=False), [64], 64, precision_is_auto=True)


@pytest.mark.parametrize(("ranks", "micro"), [(1, [64]), (1, [32, 32]), (4, [16]), (2, [16, 16])])
def test_the_size_of_a_step_decides(ranks: int, micro: list[int]) -> None:
    """Of the whole step: what one rank computes in fp32, several do as well."""
    machine = replace(GPU, num_procs=ranks, micro_batch_sizes=micro)
    limit = settling.LAUNCHES_BOUND_FLOP / 64
    assert settled(machine, limit * 0.99).precision == "fp32"
    assert settled(machine, limit * 1.01).precision == "bf16"
    for asked in ("bf16", "fp16", "fp32"):
        assert settled(replace(machine, precision=asked, precision_is_auto=False), 1.0).precision == asked


@pytest.mark.parametrize(
    ("recorded", "begins", "flop", "taken"),
    [
        (None, True, 1.0, "fp32"),
        (None, True, 1e12, "bf16"),
        (None, False, 1.0, "bf16"),  # begun by a version that took bf16 for every step
        ("fp32", False, 1e12, "fp32"),  # the batch has grown since
        ("bf16", True, 1.0, "bf16"),  # killed before its first checkpoint
    ],
)
def test_a_run_keeps_its_precision(tmp_path: Path, recorded: str | None, begins: bool, flop: float, taken: str) -> None:
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"torch": "2"} | ({} if recorded is None else {"precision": recorded})))
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        assert settle(GPU, tmp_path, ALONE, flop, begins).precision == taken
        assert torch.get_float32_matmul_precision() == {"fp32": "highest", "bf16": "high"}[taken]
        assert torch.get_num_threads() == 1
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])
    assert json.loads(file.read_text()) == {"torch": "2", "precision": taken}
    assert as_run_began(GPU, tmp_path).precision == taken
    asked = replace(GPU, precision="fp16", precision_is_auto=False)
    assert as_run_began(asked, tmp_path).precision == settle(asked, tmp_path, ALONE, flop, begins).precision == "fp16"


@pytest.mark.slow
def test_a_run_of_small_steps_is_one_in_fp32_and_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that takes itself for a GPU with bf16."""

    def as_gpu(*given: object) -> Hardware:
        machine = resolve_hardware(*given)  # type: ignore[arg-type]
        auto = given[0].precision == "auto"  # type: ignore[attr-defined]
        return replace(machine, precision="bf16", precision_is_auto=True) if auto else machine

    for module in (lab.run, lab.restore):
        monkeypatch.setattr(module, "resolve_hardware", as_gpu)
    short = (*QUICK, "trainer.global_batch_size=60", "trainer.log_every=2", "trainer.eval_every=2")
    small = start_run(tmp_path / "small", *short, "trainer.max_steps=4")
    assert "cpu, fp32 (a small step), threads: 1" in (small / "train.log").read_text()
    plain = start_run(tmp_path / "plain", *short, "trainer.max_steps=4", "hardware.precision=fp32")
    assert_equal(last_checkpoint(small)["model"], last_checkpoint(plain)["model"])
    monkeypatch.setattr(settling, "LAUNCHES_BOUND_FLOP", 1.0)
    large = start_run(tmp_path / "large", *short, "trainer.max_steps=4")
    half = start_run(tmp_path / "half", *short, "trainer.max_steps=4", "hardware.precision=bf16")
    assert_equal(last_checkpoint(large)["model"], last_checkpoint(half)["model"])
    assert metrics(large) != metrics(small)
    for run, precision in ((small, "fp32"), (plain, "fp32")):
        start_run(run, *short, "trainer.max_steps=6", *([f"hardware.precision={precision}"] if run == plain else []))
    assert_equal(last_checkpoint(small)["model"], last_checkpoint(plain)["model"])
    assert lab.restore.score_checkpoint(small, "test", [])["loss"] == result(small)["test/loss"]
