"""What Weights & Biases gets, read back with its own tool; and that it can never hold up or end a run."""

from __future__ import annotations

import contextlib
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
from conftest import QUICK, ROOT, limit, metrics, processes_with, status

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_job_of_a_multirun_is_a_run(train_command: Command, tmp_path: Path) -> None:
    done = train_command("-m", *RUN, "trainer.max_steps=3", "seed=1,2", f"hydra.sweep.dir={tmp_path}/sweep")
    assert done.returncode == 0, done.stderr
    summaries = [inspect(job, "--summary")[0] for job in sorted((tmp_path / "sweep").glob("seed-*"))]
    assert [s["config"]["seed"] for s in summaries] == [1, 2]
    assert len({s["run_id"] for s in summaries}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("server", ["nobody", "silent", pytest.param("500", marks=pytest.mark.slow), "401"])
def test_a_server_that_cannot_be_reached_costs_seconds(train_command: Command, tmp_path: Path, server: str) -> None:
    """With a key but no network, or with a server that says nothing or refuses, the run goes on offline, whole."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    held: list[socket.socket] = []
    if server == "nobody":
        listener.close()
    elif server.isdecimal():
        threading.Thread(target=refuse, args=(listener, int(server)), daemon=True).start()
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
    assert "W&B stopped" not in done.stderr
    history = json.dumps([record for record in inspect(tmp_path / "run") if record.get("type") == "history"])
    assert all(key in history for record in metrics(tmp_path / "run") for key in record)
    assert not processes_with(str(tmp_path))


def refuse(listener: socket.socket, status: int) -> None:
    """Answer each request with an error, until the socket is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(f"HTTP/1.1 {status} no\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())


def test_a_key_is_found_where_wandb_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.runs.wandb_log import _server, auto_wandb_mode

    for name in ("MODE", "API_KEY", "BASE_URL", "IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    assert auto_wandb_mode() == "offline"
    (tmp_path / "mine").write_text("machine api.wandb.ai login user password " + "0" * 40)
    with monkeypatch.context() as patch:
        patch.setenv("NETRC", str(tmp_path / "mine"))
        assert auto_wandb_mode() == "online"
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        assert auto_wandb_mode() == "online"
    (tmp_path / ".netrc").write_text("machine my.server:8080 login user password " + "0" * 40)
    assert auto_wandb_mode() == "offline"
    (tmp_path / "config").mkdir()
    (tmp_path / "config/settings").write_text("[default]\nbase_url = http://my.server:8080\n")  # wandb login --host
    assert (auto_wandb_mode(), _server()) == ("online", ("my.server", 8080))


@pytest.mark.slow
def test_the_rest_of_the_project_does_not_need_wandb(tmp_path: Path) -> None:
    code = "import sys; sys.modules['wandb'] = None; sys.argv = ['train.py', *%r]; import train; sys.exit(train.main())"
    options = [*QUICK, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", code % options], cwd=ROOT / "src", capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 0, done.stderr
