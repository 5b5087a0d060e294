"""The contract: the order, the number of ranks and an interruption change nothing."""

from __future__ import annotations

import copy
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from common import QUICK, needs

from samebits.steps import set_rng_bytes
from samebits.testing import (
    assert_equal,
    assert_undisturbed,
    killed_at,
    last_checkpoint,
    result,
    resume_run,
    start_run,
    values,
)

WAYS = {
    "1 process": ("trainer=single",),
    "2 processes, micro-batches of 4": ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=4"),
    "3 processes": ("trainer=ddp", "hardware.num_procs=3"),
}


def test_ranks_and_micro_batches_change_nothing(tmp_path: Path) -> None:
    """Losses of each step and final weights are those of one process, to rounding; 25 steps cross an epoch. Of one
    process with micro-batches: test_reference.py."""
    common = (*QUICK, "trainer.max_steps=25", "trainer.global_batch_size=66", "trainer.log_every=1", "seed=3")
    runs = {way: start_run(tmp_path / str(i), *common, *more) for i, (way, more) in enumerate(WAYS.items())}
    one = runs["1 process"]
    assert len(values(one, "train/loss")) == 25
    for way, run in runs.items():
        for key, rtol, atol in (("train/loss", 1e-4, 1e-5), ("train/grad_norm", 1e-3, 1e-4)):
            assert values(run, key) == pytest.approx(values(one, key), rel=rtol, abs=atol), way
        torch.testing.assert_close(last_checkpoint(run)["model"], last_checkpoint(one)["model"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_twice_equals_undisturbed(tmp_path: Path, ranks: int) -> None:
    """SIGKILL in the middle of epochs, twice: the same checkpoint bit for bit, and the same metrics."""
    overrides = (
        *QUICK, "trainer=single" if ranks == 1 else "trainer=ddp", "trainer.max_steps=110",
        "trainer.log_every=7", "trainer.eval_every=40", "trainer.save_every=5", "trainer.ema_decay=0.99",
        "model.dropout=0.2", "optim.lr=3e-3", f"hardware.num_procs={'auto' if ranks == 1 else ranks}",
    )  # fmt: skip
    straight = start_run(tmp_path / "straight", *overrides, own_process=True)
    killed = killed_at(tmp_path / "killed", (25, 65), overrides)
    assert_undisturbed(killed, straight)


@pytest.mark.parametrize(
    "model", ["mlp", pytest.param("resnet", marks=(needs("conf/model/resnet.yaml"), pytest.mark.slow))]
)
def test_scores_do_not_depend_on_the_ranks(tmp_path: Path, model: str) -> None:
    """3 ranks give a checkpoint the scores that one does on 250 samples, which 3 does not divide; BatchNorm too."""
    small = ("model.hidden=[16]",) if model == "mlp" else ("model.width=4", "model.blocks=[1,1]")
    quick = [o for o in QUICK if not o.startswith("model.")]
    common = (*quick, f"model={model}", *small, "trainer.max_steps=12", "trainer.global_batch_size=66")
    one = start_run(tmp_path / "1", *common)
    wanted, copy = result(one), shutil.copytree(one, tmp_path / "3")
    resume_run(copy, trainer__strategy="ddp", hardware__num_procs=3, hardware__eval_batch_size=7)
    found = result(copy)
    assert found["test/accuracy"] == wanted["test/accuracy"]
    assert found["val/accuracy"] == wanted["val/accuracy"]
    assert found["test/loss"] == pytest.approx(wanted["test/loss"], rel=1e-6)


def test_deterministic_runs_are_bitwise_equal_and_seeds_count(tmp_path: Path) -> None:
    common = (*QUICK, "trainer.max_steps=10", "model.dropout=0.1", "hardware.deterministic=true")
    a, b, c = (
        last_checkpoint(start_run(tmp_path / n, *common, f"seed={s}")) for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    assert_equal(a, b)
    assert not any(torch.equal(a["model"][name], c["model"][name]) for name in a["model"])


def test_truncated_checkpoint_falls_back_to_the_one_before(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    common = (*QUICK, "trainer.max_steps=12", "trainer.save_every=4", "trainer.keep_best=0", "trainer.eval_every=null")
    run = start_run(tmp_path / "run", *common)
    straight = copy.deepcopy(last_checkpoint(run))  # which maps the file
    newest = sorted((run / "checkpoints").glob("last_*.pt"))[-1]
    os.truncate(newest, newest.stat().st_size // 2)
    capfd.readouterr()
    start_run(run, *common)
    shown = capfd.readouterr().err
    assert f"skipping damaged checkpoint: {newest}" in shown
    assert "resumed from last_000000008.pt" in shown
    assert_equal(last_checkpoint(run), straight)


def test_checkpoints_hold_bare_names_and_load_safely(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *QUICK, "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=2")
    payload = last_checkpoint(run)  # weights_only=True
    assert not [k for k in payload["model"] if k.startswith(("module.", "_orig_mod."))]
    states = []
    for row in payload["ranks"]:
        set_rng_bytes(row, torch.device("cpu"))
        states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    for one, other in zip(*states):
        assert one != other, "each rank draws numbers of its own"
