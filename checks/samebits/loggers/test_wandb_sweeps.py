"""Sweeps that W&B's server leads, by the real `wandb sweep` and `wandb agent`: runs stopped or handed out again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_wandb
import yaml
from common import QUICK, ROOT, TRAIN
from omegaconf import OmegaConf
from wandb_sweeps import SweepServer, serving_sweep

from lab.program import PROGRAM
from samebits.config import composed
from samebits.config.wandb_agent import from_agent, run_folder
from samebits.errors import ConfigError
from samebits.loggers import stopped_by_wandb
from samebits.process.parent import end_as_stopped
from samebits.runs import choose_run
from samebits.status import checkpoint_files, write_status
from samebits.testing import compose, metrics, result, status
from samebits.testing.processes import called, limit, processes_with, sample_of, wait_for, warm

RUN = [o for o in QUICK if not o.startswith(("logger", "model"))]
EVERY = ["trainer.log_every=5", "trainer.eval_every=10", "trainer.save_every=10"]
VALUES = {"optim.lr": 0.01, "trainer.clip_norm": None, "model.hidden": [16]}  # as the server chooses them
Command = Callable[..., "subprocess.CompletedProcess[str]"]


# a run that waits to be stopped leaves the cores to others; the first one waits until it was signalled
SLOWLY = """
import pathlib, sys, time
sys.path.insert(0, {src!r})
sys.argv[0] = "train.py"
import lab.loop, train
train_step = lab.loop.train_step
def slowly(loss_modules, state, *given):
    time.sleep(0.05)
    while state.step == 20 and not pathlib.Path({signalled!r}).exists():
        time.sleep(0.005)
    return train_step(loss_modules, state, *given)
lab.loop.train_step = slowly
sys.exit(train.main())
"""


def online(server: SweepServer) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, **test_wandb.online(server)}


def begin_sweep(server: SweepServer, folder: Path) -> None:
    """`wandb sweep` with conf/wandb_sweep.yaml, its runs short, below `folder`."""
    sweep = yaml.safe_load((ROOT / "conf" / "wandb_sweep.yaml").read_text())
    assert sweep["command"][:3] == ["./run", "train", "trainer.max_epochs=5"]
    slowly = SLOWLY.format(src=str(ROOT / "src"), signalled=str(folder / "signalled"))
    sweep["command"][:3] = [sys.executable, "-c", slowly, *RUN, *EVERY, f"hydra.run.dir={folder}/${{run_folder:none}}"]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    command, env = ["wandb", "sweep", "--project", "lab", "sweep.yaml"], {**os.environ, **online(server)}
    assert "wandb agent me/lab/s1" in called(command, cwd=folder, env=env, fresh=True).stderr


@contextlib.contextmanager
def agent(server: SweepServer, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`wandb agent`, as `wandb sweep` has printed it, but asking more often; no process of it stays."""
    code = "from wandb import wandb_agent; from wandb.cli import cli; wandb_agent.Agent.POLL_INTERVAL = 0.5; cli.cli()"
    command = [sys.executable, "-c", code, "agent", "me/lab/s1"]
    with open(folder / "agent.log", "a") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **online(server)},
            stdout=log, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in processes_with(f"hydra.run.dir={folder}"):
            os.kill(pid, signal.SIGKILL)


def finished(process: subprocess.Popen[str], folder: Path) -> str:
    """The agent's output, once its sweep has ended by itself."""
    process.wait(limit(100))
    return (folder / "agent.log").read_text()


def saved(run: Path) -> bool:
    return any((run / "checkpoints").glob("last_*.pt"))


def assert_once(server: SweepServer, run: Path) -> None:
    """Each step of metrics.jsonl is on the server once, in order, with the loss of the file."""
    losses = {line["step"]: line["train/loss"] for line in metrics(run) if "train/loss" in line}
    rows = [row for row in server.rows(run.name) if "train/loss" in row]
    assert [row["step"] for row in rows] == sorted(losses)
    assert {row["step"]: row["train/loss"] for row in rows} == pytest.approx(losses, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("by_stream", sample_of([True], [False, True]))
def test_what_becomes_of_an_agents_runs(tmp_path: Path, train_command: Command, by_stream: bool) -> None:
    """The first is preempted, handed out again and goes on. W&B stops the second (a button of its page, an early
    termination: the agent sends SIGTERM, or wandb in the run SIGINT), which is saved, not handed out again, and counts
    as no failure. `wandb sweep --cancel` has the third killed, which goes on by hand."""
    endless = VALUES | {"trainer.max_steps": 1_000_000}
    with serving_sweep([VALUES | {"trainer.max_steps": 40}, endless, endless]) as server:
        server.stop_at["run1"], server.by_stream = 4, by_stream
        begin_sweep(server, tmp_path)
        first, second, third = (tmp_path / "s1" / f"run{number}" for number in range(3))
        with agent(server, tmp_path) as process:
            wait_for(lambda: saved(first), process)
            (pid,) = processes_with(f"hydra.run.dir={tmp_path}")
            os.kill(pid, signal.SIGTERM)
            (tmp_path / "signalled").touch()
            wait_for(lambda: saved(third), process)
            assert status(second)["status"] == "interrupted"
            server.state = "CANCELED"
            said = finished(process, tmp_path)
        given = [("run", "run0"), ("resume", "run0"), ("run", "run1"), ("run", "run2")]
        assert [one for one in server.given if one[0] != "stop"] == given
        assert sorted(path.name for path in (tmp_path / "s1").iterdir()) == ["run0", "run1", "run2"]

        assert said.count("SIGTERM: saving") == 2 - by_stream
        assert ", resumed from last_" in said
        assert server.states["run0"] == status(first)["status"] == "finished"
        assert result(first)["step"] == 40
        assert_once(server, first)
        config = yaml.safe_load((first / "config.yaml").read_text())
        assert server.runs["run0"]["displayName"].endswith("lr=0.01 clip_norm=null hidden=[16] max_steps=40")
        assert (config["optim"]["lr"], config["trainer"]["clip_norm"], config["resume"]) == (0.01, None, None)

        assert said.count("SIGINT: saving") == by_stream
        assert "failed runs" not in said
        assert (status(second)["signal"], server.states["run1"], server.preempting) == ("W&B", "killed", set())
        assert saved(second)
        assert_once(server, second)

        assert status(third)["status"] == "running"  # nobody could say otherwise
        words = [*RUN, *EVERY, f"hydra.run.dir={tmp_path}/${{run_folder:none}}", "trainer.max_steps=1000000"]
        words += ["optim.lr=0.01", "trainer.clip_norm=None", "model.hidden=[16]"]
        ids = {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "run2", **online(server)}
        done = train_command(*words, "process.max_time=5s", **ids, code=2)
        assert "process.max_time='5s': W&B's run run2 has null, and is resumed with its initial values" in done.stderr
        before = checkpoint_files(third / "checkpoints")[-1]  # SIGKILL between two writes: perhaps a best one
        last = metrics(third)[-1]["step"]
        again = warm.Popen([*TRAIN, *words], cwd=tmp_path, env={**os.environ, **ids}, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: metrics(third)[-1]["step"] > last + 10, again)
        again.terminate()
        assert f"resumed from {before.name}" in again.communicate(timeout=limit(60))[1]
        assert again.returncode == 75
        wait_for(lambda: server.states["run2"] == "preempted")
        for lines, name in ((server.rows("run2"), "_step"), (metrics(third), "step")):
            steps = [line[name] for line in lines if "train/loss" in line]
            assert steps == sorted(set(steps))


@pytest.mark.slow
def test_another_run_of_wandbs_is_not_taken_for_this_one(train_command: Command) -> None:
    """A folder that the sweep's command names, the same for all of its runs."""
    words = [*RUN, "trainer.max_steps=2", "hydra.run.dir=run"]
    ids = {"WANDB_SWEEP_ID": "s1", "WANDB_MODE": "offline"}
    train_command(*words, "logger=none", WANDB_RUN_ID="one", **ids)
    done = train_command(*words, "logger=none", WANDB_RUN_ID="two", **ids, code=2)
    assert "contains W&B's run one, not two; remove hydra.run.dir from the sweep's command" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_whole_config_is_read_as_the_overrides_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wandb/wandb issue 9143 shows what a run that is handed out again gets."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    given = [
        "hydra.run.dir=x", "trainer.max_steps=5", "_wandb={'cli_version': '0.31.0'}", "resume=None",
        "run={'overrides': ['trainer.max_steps=5', 'optim.lr=0.1', 'resume=auto'], 'host': 'a'}", "optim={'lr': 0.1}",
        "optim.lr=0.1",
    ]  # fmt: skip
    assert from_agent(PROGRAM, given) == ["hydra.run.dir=x", "trainer.max_steps=5", "optim.lr=0.1", "resume=auto"]
    assert from_agent(PROGRAM, ["optim.lr=0.1", "resume=out"]) == ["optim.lr=0.1", "resume=out"]


@pytest.mark.slow
def test_a_run_that_was_begun_elsewhere_begins_anew_and_says_so(tmp_path: Path, train_command: Command) -> None:
    ids = {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "r1"}
    began_with = [*RUN, "logger=none", "trainer.max_steps=2", "optim.lr=0.5"]
    done = train_command("hydra.run.dir=run", "_wandb={}", f"run={ {'overrides': began_with} }", "optim.lr=0.5", **ids)
    assert "W&B has assigned this run again, but run is missing: the run starts from scratch" in done.stderr
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["optim"]["lr"] == 0.5


def test_a_run_of_the_agents_has_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    hydra: Any = OmegaConf.create(composed(PROGRAM, ["name=exp"]))["hydra"]
    assert "${run_folder:" in OmegaConf.to_container(hydra)["run"]["dir"]
    assert run_folder("2026-x") == "2026-x"
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    assert run_folder("2026-x") == "s1/r1"
    monkeypatch.setenv("WANDB_RUN_ID", "../r1")
    with pytest.raises(ConfigError, match=r"WANDB_RUN_ID=\.\./r1: not an id"):
        run_folder("2026-x")


def test_an_invalid_id_stops_a_run_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_LAUNCH", "1")
    monkeypatch.setenv("WANDB_RUN_ID", "x:y")
    with pytest.raises(ConfigError, match=r"^WANDB_RUN_ID=x:y: not an id"):
        choose_run(PROGRAM, compose(*QUICK, "trainer.max_steps=1"), tmp_path / "run", [], tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("state", "signal", "raised"),
    [("interrupted", "W&B", None), ("interrupted", "SIGINT", KeyboardInterrupt), ("preempted", "SIGTERM", SystemExit)],
)
def test_the_agent_counts_no_run_that_it_stopped_as_failed(
    tmp_path: Path, state: str, signal: str, raised: type[BaseException] | None
) -> None:
    """It counts each exit status above 0, and gives up after three in its first minute."""
    write_status(tmp_path, state, signal=signal)
    ended: type[BaseException] | None = None
    try:
        end_as_stopped(tmp_path)
    except (KeyboardInterrupt, SystemExit) as end:
        ended = type(end)
    assert ended is raised


@pytest.mark.slow
def test_who_stopped_a_run_is_asked_of_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving_sweep([]) as server:
        server.stop_at["r1"] = 0
        for name, value in {**online(server), "WANDB_SWEEP_ID": "s1"}.items():
            monkeypatch.setenv(name, value)
        assert not stopped_by_wandb()  # not the agent's
        for run, stopped in (("r1", True), ("r2", False)):
            monkeypatch.setenv("WANDB_RUN_ID", run)
            assert stopped_by_wandb() is stopped
        assert not caplog.records
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    assert not stopped_by_wandb()
    assert "W&B did not answer" in caplog.text
    monkeypatch.setenv("WANDB_MODE", "offline")
    caplog.clear()
    assert not stopped_by_wandb()
    assert not caplog.records
