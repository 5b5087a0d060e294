"""What Weights & Biases gets, read back with its own tool; and that it can never hold up or end a run."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, ROOT, limit, metrics, status

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="W&B's command is looked up beside Python")
RUN = tuple(o for o in QUICK if not o.startswith("logger"))
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def inspect(run_dir: Path, *options: str) -> list[dict[str, Any]]:
    """The records of the run's one transaction log."""
    files = list((run_dir / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1, files
    return inspect_file(files[0], *options)


def inspect_file(file: Path, *options: str) -> list[dict[str, Any]]:
    """Through `wandb leet inspect`."""
    beside = Path(sys.executable).with_name("wandb")
    wandb = str(beside if beside.exists() else shutil.which("wandb"))
    done = subprocess.run(
        [wandb, "leet", "inspect", str(file), "--json", *options], capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if not options else [json.loads(done.stdout)]


def test_an_offline_run_holds_metrics_and_config(train_command: Command, tmp_path: Path) -> None:
    more = ("trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=30", "trainer.log_every=10", "logger.tags=[a,b]")
    done = train_command(*RUN, *more, "logger.group=g", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    (summary,) = inspect(run, "--summary")
    logged = metrics(run)
    assert summary["config"]["optim"]["lr"] == 1e-3
    assert summary["config"]["model"]["hidden"] == [16]
    assert "trainer=ddp" in summary["config"]["run"]["overrides"]
    assert summary["config"]["run"]["git_commit"]
    assert summary["tags"] == ["a", "b"]
    assert summary["state"] == "finished"
    assert summary["summary"]["train/loss"] == pytest.approx([m for m in logged if "train/loss" in m][-1]["train/loss"])
    history = [record for record in inspect(run) if record.get("type") == "history"]
    text = json.dumps(history)
    for line in logged:
        for key, value in line.items():
            assert key in text, key
            if isinstance(value, float) and value != 0:
                assert str(value)[:8] in text, (key, value)


def test_a_failed_run_is_failed_there_too(train_command: Command, tmp_path: Path) -> None:
    # 1e30 makes the loss overflow in the first steps
    done = train_command(
        *RUN, "optim=sgd", "optim.lr=1e30", "optim/schedule=constant", "optim.schedule.warmup=0",
        "trainer.max_steps=50", "trainer.log_every=5", "trainer.clip_norm=null", "hydra.run.dir=run",
    )  # fmt: skip
    assert done.returncode == 1
    assert "not finite" in done.stderr
    assert "Traceback" not in done.stderr
    assert status(tmp_path / "run")["status"] == "failed"
    (summary,) = inspect(tmp_path / "run", "--summary")
    assert (summary["state"], summary["exit_code"]) == ("failed", 1)


def test_each_job_of_a_multirun_is_a_run(train_command: Command, tmp_path: Path) -> None:
    done = train_command("-m", *RUN, "trainer.max_steps=3", "seed=1,2", f"hydra.sweep.dir={tmp_path}/sweep")
    assert done.returncode == 0, done.stderr
    summaries = [inspect(job, "--summary")[0] for job in sorted((tmp_path / "sweep").glob("seed-*"))]
    assert [s["config"]["seed"] for s in summaries] == [1, 2]
    assert len({s["run_id"] for s in summaries}) == 2


@pytest.mark.parametrize("server", ["nobody", "silent"])
def test_a_server_that_cannot_be_reached_costs_seconds(train_command: Command, tmp_path: Path, server: str) -> None:
    """With a key but no network, or with a server that accepts and says nothing, the run goes on offline."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    held: list[socket.socket] = []
    if server == "nobody":
        listener.close()
    else:
        threading.Thread(target=lambda: [held.append(listener.accept()[0]) for _ in range(20)], daemon=True).start()
    done = train_command(
        *RUN, "trainer.max_steps=3", "logger.timeout_s=3", "hydra.run.dir=run", timeout=limit(60),
        WANDB_API_KEY="0" * 40, WANDB_MODE="online", WANDB_BASE_URL=f"http://127.0.0.1:{port}",
    )  # fmt: skip
    listener.close()
    assert done.returncode == 0, done.stderr
    assert "offline" in done.stderr
    assert status(tmp_path / "run")["status"] == "finished"
    assert len(metrics(tmp_path / "run")) >= 1


def test_the_rest_of_the_project_does_not_need_wandb(tmp_path: Path) -> None:
    code = "import sys; sys.modules['wandb'] = None; sys.argv = ['train.py', *%r]; import train; sys.exit(train.main())"
    options = [*QUICK, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", code % options], cwd=ROOT / "src", capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 0, done.stderr
