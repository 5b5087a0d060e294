"""Values that are found by trying: src/tune.py and hardware.micro_batch_size=auto."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import QUICK, ROOT, assert_equal, compose, last_checkpoint, limit, result, start_run
from omegaconf import OmegaConf

from engine.errors import ConfigError
from engine.host import in_a_child
from engine.profiling import memory
from engine.ranks import distributed
from engine.ranks.hardware import Hardware
from engine.ranks.threads import Threads
from lab import tune

TUNE = [sys.executable, str(ROOT / "src/tune.py")]
MB = 1_000_000
# activations outweigh all else: a step of 720 samples has three arrays of 58 MB at once
WIDE = ("model.hidden=[20000,8]", "data.splits.test=null", "trainer.global_batch_size=720", "trainer.max_steps=2")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much for a trial, beside what the process has."""
    monkeypatch.setattr(memory, "free_memory", lambda device: 120 * MB)


def tried(*overrides: str) -> tuple[int, dict[int, bool]]:
    return in_a_child("trial", tune.largest_micro_batch, compose(*QUICK, *overrides))


def test_the_largest_micro_batch_is_between_one_that_fits_and_one_that_does_not(free: None) -> None:
    size, sizes = tried(*WIDE)
    good, bad = ([n for n, fits in sizes.items() if fits is kind] for kind in (True, False))
    assert size == max(good)
    assert bad
    parts = -(-720 // size)
    assert -(-720 // (parts - 1)) in bad  # the next size, which cuts the batch into fewer parts


def test_a_gpu_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.set_per_process_memory_fraction refuses `cuda` alone."""
    machine = Hardware("cuda", 1, "fp32", Threads(1, 1, ""), [4], 4)
    monkeypatch.setattr(tune, "resolve_hardware", lambda *_: machine)
    monkeypatch.setattr(tune, "apply_hardware", lambda *_: None)
    monkeypatch.setattr(distributed, "count_gpus", lambda: 1)
    assert tune.Trial.of(compose(*QUICK, "trainer.max_steps=2")).one.device == torch.device("cuda", 0)


def test_a_whole_share_is_tried_once(tmp_path: Path) -> None:
    assert tried("trainer.global_batch_size=64", "trainer.max_steps=2") == (64, {64: True})


def test_no_memory_for_a_single_sample_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 20 * MB)
    with pytest.raises(ConfigError, match="trial: one sample at a time finds no memory"):
        tried("model.hidden=[1000000]", "trainer.global_batch_size=4", "trainer.max_steps=2")


@pytest.mark.slow
def test_auto_is_found_once_and_computes_what_its_number_does(tmp_path: Path, free: None) -> None:
    auto = start_run(tmp_path / "auto", *QUICK, *WIDE, "hardware.micro_batch_size=auto")
    found = OmegaConf.load(auto / "config.yaml").hardware.micro_batch_size
    assert isinstance(found, int)
    assert 1 <= found < 720
    assert "hardware.micro_batch_size=auto" in OmegaConf.load(auto / "overrides.yaml")
    given = start_run(tmp_path / "given", *QUICK, *WIDE, f"hardware.micro_batch_size={found}")
    assert_equal(last_checkpoint(auto), last_checkpoint(given))


@pytest.mark.slow
def test_a_resume_does_not_look_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [*QUICK, "trainer.max_steps=2", "hardware.micro_batch_size=auto", f"hydra.run.dir={run}"]
    command = [sys.executable, str(ROOT / "src/train.py"), *given]
    first = subprocess.run(command, capture_output=True, text=True, timeout=limit(60))
    assert "hardware.micro_batch_size=auto: 64 samples fit, a whole share" in first.stderr
    again = [*command, "resume=auto", "trainer.max_steps=4"]
    second = subprocess.run(again, capture_output=True, text=True, timeout=limit(60))
    assert second.returncode == 0, second.stderr
    assert "samples fit" not in second.stderr
    assert result(run)["step"] == 4


def test_what_one_device_cannot_try_is_refused() -> None:
    with pytest.raises(ConfigError, match="trainer=fsdp uses more - give a number"):
        tried("trainer=fsdp", "hardware.num_procs=2", "trainer.max_steps=2")


def test_the_ramp_goes_through_all_rates_and_keeps_the_factors() -> None:
    trial = tune.Trial.of(compose(*QUICK, "trainer.max_steps=2", "+optim.lr_factors={bias: 10}"))
    state, _ = trial.begin(trial.machine)
    state.schedule = tune.ramp(state)
    seen = []
    for _ in tune.LR_RATES:
        seen.append([group["lr"] for group in state.optimizer.param_groups])
        state.schedule.step([True])
    assert [min(rates) for rates in seen] == pytest.approx(tune.LR_RATES)
    assert all(max(rates) == pytest.approx(10 * min(rates)) for rates in seen)


def test_the_suggested_rate_is_a_tenth_of_the_best() -> None:
    def loss(lr: float) -> float:
        return 1.0 - math.exp(-((math.log10(lr) + 2) ** 2))

    found = [(lr, loss(lr)) for lr in tune.LR_RATES]
    assert 5e-4 < tune.suggested_lr(found) < 4e-3  # smoothing moves the least of 1e-2 to the right
    assert not tune.diverged(found[:60])
    assert tune.diverged([*found[:80], (1.0, math.nan)])
    assert tune.diverged([*found[:80], *((1.0, 1e6),) * 3])
    with pytest.raises(ConfigError, match="not finite from the first step"):
        tune.suggested_lr([(1e-6, math.nan)])


def test_the_loader_with_the_fewest_workers_that_keeps_up_is_chosen() -> None:
    found = {("device", 0): 900.0, ("threads", 1): 1300.0, ("threads", 2): 2000.0, ("workers", 1): 5000.0}
    assert tune.best_loader(1000.0, found) == ("threads", 1)
    assert tune.best_loader(100.0, found) == ("device", 0)
    assert tune.best_loader(1e6, found) == ("workers", 1)


def test_a_stage_that_is_none_is_one_line() -> None:
    done = subprocess.run([*TUNE, "lrs", *QUICK], capture_output=True, text=True, timeout=limit(20))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: lrs: neither a stage (micro_batch, loader, lr) nor key=value\n"


@pytest.mark.slow
def test_the_command_prints_overrides_that_train(tmp_path: Path) -> None:
    given = [*QUICK, "trainer.max_steps=4", "optim.lr=1"]
    done = subprocess.run(
        [*TUNE, *given, f"hydra.run.dir={tmp_path}/tune"], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=limit(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pasted = done.stdout.splitlines()[-1].split()
    record = json.loads((tmp_path / "tune/tune.json").read_text())
    assert pasted == [*given[:-1], *(f"{key}={value}" for key, value in record["overrides"].items())]
    assert set(record["overrides"]) == {"hardware.micro_batch_size", "data.loader", "data.num_workers", "optim.lr"}
    assert 1e-5 < record["overrides"]["optim.lr"] < 0.1
    assert (tmp_path / "tune/lr.png").read_bytes().startswith(b"\x89PNG")
    run = start_run(tmp_path / "run", *pasted)
    assert math.isfinite(result(run)["train/loss"])
