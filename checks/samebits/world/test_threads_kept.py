"""A run keeps the number of threads that it began with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from common import QUICK

from lab.options import TrainerConfig
from samebits.device import HardwareConfig, resolve_auto_as_recorded, resolve_hardware, threads
from samebits.host import cpu as cores
from samebits.testing import start_run

AUTO = [*QUICK, "hardware.num_threads=auto", "model.dropout=0.1", "optim/schedule=constant", "trainer.eval_every=2"]


@pytest.mark.slow
def test_a_run_keeps_the_number_of_threads_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume takes the number on record, not today's rule: one of many cores, or what an older version measured."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # a pool of threads here would hang forks
    with monkeypatch.context() as patch:
        patch.setattr(threads, "SMALL_FLOP", 0)
        run = start_run(tmp_path / "auto", *AUTO, "trainer.max_steps=2")
    environment = json.loads((run / "environment.json").read_text())
    assert environment["threads"] == {"count": 2, "most": 2, "why": "a rank's 2 cores", "auto": True}
    start_run(run, *AUTO, "trainer.max_steps=4")
    assert "threads: 2 (as when the run started)" in (run / "train.log").read_text()
    fewer = threads.recorded_threads(2, most=1)
    assert fewer.count == 1
    assert "the run started with 2, but there are not enough cores, so rounding changes" in fewer.why
    measured = environment | {
        "threads": {"count": 2, "most": 4, "why": "measured: 2 is 1.4x faster than 1", "auto": True}
    }
    (run / "environment.json").write_text(json.dumps(measured))
    auto = resolve_hardware(HardwareConfig(device="cpu"), TrainerConfig())
    assert resolve_auto_as_recorded(auto, run).threads == threads.Threads(2, 2, "as when the run started")
