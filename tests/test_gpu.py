"""What only a GPU can show; skipped without one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_equal, last_checkpoint, metrics, result, start_run

import lab.loop
from lab import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
COMMON = ("logger=none", "hardware=gpu", "model=resnet", "model.width=8", "trainer.max_epochs=null")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("loader", ["threads", "device"])
def test_it_learns_in_every_precision(tmp_path: Path, precision: str, loader: str) -> None:
    run = start_run(
        tmp_path / "run", *COMMON, f"hardware.precision={precision}", f"data.loader={loader}", "trainer.max_steps=200",
        "optim.lr=3e-3", own_process=True,
    )  # fmt: skip
    assert result(run)["test/accuracy"] > 0.9
    assert all(v.dtype in (torch.float32, torch.int64) for v in last_checkpoint(run)["model"].values())


def test_a_step_does_not_wait_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any synchronisation inside train_step raises, from the third step on (the first ones allocate)."""
    original, calls = lab.loop.train_step, [0]

    def guarded(*args: Any) -> Any:
        calls[0] += 1
        torch.cuda.set_sync_debug_mode("error" if calls[0] > 2 else "default")
        try:
            return original(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(lab.loop, "train_step", guarded)
    for loader in ("threads", "device"):
        start_run(
            tmp_path / loader, *COMMON, f"data.loader={loader}", "trainer.max_steps=30", "hardware.precision=bf16",
            own_process=True,
        )  # fmt: skip


def test_deterministic_runs_are_bitwise_equal(tmp_path: Path) -> None:
    more = ("trainer.max_steps=30", "hardware.deterministic=true")
    a, b = (last_checkpoint(start_run(tmp_path / n, *COMMON, *more, own_process=True)) for n in "ab")
    assert_equal(a["model"], b["model"])
    assert_equal(a["optimizer"], b["optimizer"])


def test_interrupted_equals_uninterrupted(tmp_path: Path) -> None:
    more = ("hardware.deterministic=true", "trainer.save_every=10", "trainer.max_steps=30", "hardware.precision=fp16")
    straight = start_run(tmp_path / "straight", *COMMON, *more, own_process=True)
    cut = start_run(tmp_path / "cut", *COMMON, *more, own_process=True)
    (cut / "checkpoints/last_000000030.pt").unlink()
    for best in (cut / "checkpoints").glob("best_*.pt"):
        best.unlink()
    start_run(cut, *COMMON, *more, own_process=True)
    assert_equal(last_checkpoint(cut), last_checkpoint(straight))
    assert metrics(cut) == metrics(straight)


def test_compiled_steps_agree(tmp_path: Path) -> None:
    more = ("trainer.max_steps=20", "hardware.precision=fp32")
    eager = start_run(tmp_path / "eager", *COMMON, *more, own_process=True)
    compiled = start_run(tmp_path / "compiled", *COMMON, *more, "hardware.compile=true", own_process=True)
    assert result(compiled)["val/loss"] == pytest.approx(result(eager)["val/loss"], rel=0.05)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_ranks_have_a_gpu_each(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *COMMON, "trainer=ddp", "trainer.max_steps=20", "hardware.num_procs=2")
    assert len(last_checkpoint(run)["ranks"]) == 2
    assert all(rank["step_time_ms"] > 0 for rank in result(run)["balance"]["ranks"])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_ranks_with_sync_batchnorm_and_compressed_gradients_learn(tmp_path: Path) -> None:
    more = ("trainer=ddp", "hardware.num_procs=2", "trainer.sync_batchnorm=true", "trainer.ddp.comm_hook=bf16")
    run = start_run(tmp_path / "run", *COMMON, *more, "trainer.max_steps=200", "optim.lr=3e-3")
    assert result(run)["test/accuracy"] > 0.9
    assert "step_time" not in result(run)["balance"]  # nothing tells it where ranks wait for each other all along


FSDP = ("trainer=fsdp", "hardware.num_procs=2", "model=mlp", "model.hidden=[64,64]")
NO_RESNET = [o for o in COMMON if not o.startswith("model")]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    "more", ["hardware.precision=bf16", "hardware.precision=fp16", "trainer.fsdp.cpu_offload=true"]
)
def test_sharded_training_learns_and_goes_on_exactly(tmp_path: Path, more: str) -> None:
    common = (*NO_RESNET, *FSDP, "hardware.deterministic=true", "trainer.save_every=50", "trainer.ema_decay=0.9", more)
    straight = start_run(tmp_path / "straight", *common, "trainer.max_steps=100")
    cut = start_run(tmp_path / "cut", *common, "trainer.max_steps=100")
    for path in (cut / "checkpoints").glob("*100.dcp"):
        shutil.rmtree(path)
    start_run(cut, *common, "trainer.max_steps=100")
    assert result(straight)["test/accuracy"] > 0.85
    first, second = (checkpoint.load(run / "checkpoints/last_000000100.dcp") for run in (straight, cut))
    assert_equal(first, second)
    assert metrics(cut) == metrics(straight)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_sharded_step_does_not_wait_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = lab.loop.train_step, [0]

    def guarded(*args: Any) -> Any:
        calls[0] += 1
        torch.cuda.set_sync_debug_mode("error" if calls[0] > 2 else "default")
        try:
            return original(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(lab.loop, "train_step", guarded)
    start_run(tmp_path / "run", *NO_RESNET, *FSDP, "trainer.max_steps=30", "hardware.precision=bf16")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_sharding_halves_the_memory(tmp_path: Path) -> None:
    """Peak of a model whose weights, gradients and optimizer state outweigh its activations."""
    big = ("model=mlp", "model.hidden=[4096,4096,4096,4096]", "trainer.max_steps=5", "hardware.num_procs=2")
    peaks = []
    for trainer in ("ddp", "fsdp"):
        run = start_run(tmp_path / trainer, *NO_RESNET, *big, f"trainer={trainer}", "trainer.log_every=5")
        peaks.append(max(rank["memory_mb"] for rank in result(run)["balance"]["ranks"]))
    assert peaks[1] < 0.7 * peaks[0]
