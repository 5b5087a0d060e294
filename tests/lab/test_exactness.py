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
from conftest import (
    QUICK,
    assert_equal,
    killed_at,
    last_checkpoint,
    metrics,
    result,
    slow,
    start_run,
)
from omegaconf import OmegaConf

from engine.device import set_rng_row

WAYS = {
    "1 process": ("trainer=single",),
    "1 process, micro-batches of 5": ("trainer=single", "hardware.micro_batch_size=5"),
    "2 processes": ("trainer=ddp", "hardware.num_procs=2"),
    "2 processes, micro-batches of 4": ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=4"),
    "3 processes": ("trainer=ddp", "hardware.num_procs=3"),
}


def test_ranks_and_micro_batches_change_nothing(tmp_path: Path) -> None:
    """Losses of each step and final weights are those of one process, to rounding; 25 steps cross an epoch."""
    common = (*QUICK, "trainer.max_steps=25", "trainer.global_batch_size=66", "trainer.log_every=1", "seed=3")
    runs = {way: start_run(tmp_path / str(i), *common, *more) for i, (way, more) in enumerate(WAYS.items())}
    losses = {
        way: torch.tensor([m["train/loss"] for m in metrics(run) if "train/loss" in m]) for way, run in runs.items()
    }
    norms = {
        way: torch.tensor([m["train/grad_norm"] for m in metrics(run) if "train/grad_norm" in m])
        for way, run in runs.items()
    }
    weights = {way: last_checkpoint(run)["model"] for way, run in runs.items()}
    assert len(losses["1 process"]) == 25
    for way in WAYS:
        torch.testing.assert_close(
            losses[way], losses["1 process"], rtol=1e-4, atol=1e-5, msg=lambda m, w=way: f"{w}: {m}"
        )
        torch.testing.assert_close(
            norms[way], norms["1 process"], rtol=1e-3, atol=1e-4, msg=lambda m, w=way: f"{w}: {m}"
        )
        for name, value in weights["1 process"].items():
            torch.testing.assert_close(weights[way][name], value, rtol=1e-3, atol=1e-4)


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
    assert_equal(last_checkpoint(killed), last_checkpoint(straight))
    assert metrics(killed) == metrics(straight)
    first, second = result(killed), result(straight)
    assert {k: first[k] for k in first if "/" in k} == {k: second[k] for k in second if "/" in k}


@pytest.mark.parametrize("model", ["mlp", slow("resnet")])
def test_scores_do_not_depend_on_the_ranks(tmp_path: Path, model: str) -> None:
    """1, 2 and 3 ranks give one checkpoint the same scores on 250 samples, which 3 does not divide; BatchNorm too."""
    small = ("model.hidden=[16]",) if model == "mlp" else ("model.width=4", "model.blocks=[1,1]")
    quick = [o for o in QUICK if not o.startswith("model.")]
    common = (*quick, f"model={model}", *small, "trainer.max_steps=12", "trainer.global_batch_size=66")
    one = start_run(tmp_path / "1", *common)
    scores = {1: result(one)}
    for ranks in (2, 3):
        copy = tmp_path / str(ranks)
        shutil.copytree(one, copy)
        cfg = OmegaConf.load(copy / "config.yaml")
        cfg.trainer.strategy, cfg.hardware.num_procs, cfg.hardware.eval_batch_size = "ddp", ranks, 7
        OmegaConf.save(cfg, copy / "config.yaml")
        from lab.project import start

        start(cfg, copy, [], own_process=False)
        scores[ranks] = result(copy)
    for ranks in (2, 3):
        assert scores[ranks]["test/accuracy"] == scores[1]["test/accuracy"]
        assert scores[ranks]["val/accuracy"] == scores[1]["val/accuracy"]
        assert scores[ranks]["test/loss"] == pytest.approx(scores[1]["test/loss"], rel=1e-6)


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
    assert "on from last_000000008.pt" in shown
    assert_equal(last_checkpoint(run), straight)


def test_checkpoints_hold_bare_names_and_load_safely(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *QUICK, "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=2")
    payload = last_checkpoint(run)  # weights_only=True
    assert not [k for k in payload["model"] if k.startswith(("module.", "_orig_mod."))]
    states = []
    for row in payload["ranks"]:
        set_rng_row(row, torch.device("cpu"))
        states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    for one, other in zip(*states):
        assert one != other, "each rank draws numbers of its own"
