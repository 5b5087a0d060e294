"""Offline runs, uploaded later to a server that keeps what it gets; sweeps as groups; runs that W&B's agent starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import QUICK, ROOT, TRAIN, limit, metrics, result, status
from test_wandb import inspect, inspect_file
from wandb_server import KEY, Server, serving

from engine.config.wandb_agent import from_agent
from engine.runs.directory import write_json
from engine.runs.wandb_log import run_name

RUN = tuple(o for o in QUICK if not o.startswith("logger"))
SYNC = [sys.executable, str(ROOT / "src" / "sync.py")]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def sync(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    online = {"WANDB_API_KEY": KEY, "WANDB_MODE": "online", "WANDB_BASE_URL": server.url}
    done = subprocess.run(
        [*SYNC, *arguments], capture_output=True, text=True, timeout=limit(60), env={**os.environ, **online}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def merged(run_dir: Path) -> dict[int, dict[str, float]]:
    """metrics.jsonl, the lines of a step together."""
    rows: dict[int, dict[str, float]] = {}
    for line in metrics(run_dir):
        step = int(line.pop("step"))
        rows.setdefault(step, {}).update(line)
    return rows


def assert_holds(server: Server, run_dir: Path) -> None:
    """The server has each step of metrics.jsonl once, with its values."""
    rows = {row["_step"]: row for row in server.rows(status(run_dir)["wandb_id"])}
    truth = merged(run_dir)
    assert server.steps(status(run_dir)["wandb_id"]) == sorted(truth)
    for step, values in truth.items():
        assert {key: rows[step][key] for key in values} == pytest.approx(values, rel=1e-12)


@pytest.mark.slow
def test_a_run_is_uploaded_once(
    train_command: Command, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = train_command(
        *RUN, "trainer.max_steps=6", "trainer.log_every=2", "trainer.eval_every=4", "hydra.run.dir=run"
    )
    assert done.returncode == 0, done.stderr
    assert "uploaded by wandb sync" in sync(server, "../run").stdout
    assert not list(Path.cwd().iterdir())  # wandb's own log lies in the run directory
    assert_holds(server, tmp_path / "run")
    assert server.exits[status(tmp_path / "run")["wandb_id"]] == 0
    server.history.clear()
    assert "nothing more" in sync(server, str(tmp_path / "run")).stdout
    assert not server.history


@pytest.mark.slow
def test_a_resumed_run_is_one_run(train_command: Command, tmp_path: Path, server: Server) -> None:
    """Started three times; before the second start it had logged steps that it then did again."""
    options = [*RUN, "trainer.log_every=2", "trainer.eval_every=4", "trainer.save_every=4", "logger.tags=[a]"]
    run = tmp_path / "run"
    assert train_command(*options, "trainer.max_steps=8", "hydra.run.dir=run").returncode == 0
    for path in (run / "checkpoints").glob("*8.pt"):
        path.unlink()  # as if it had been killed after its last log, before it was saved
    for steps in (12, 16):
        done = train_command(f"resume={run}", f"trainer.max_steps={steps}", "logger.tags=[a]")
        assert done.returncode == 0, done.stderr
    parts = sorted((run / "wandb").glob("offline-run-*"))
    assert len(parts) == 3
    twice = [step for part in parts for step in steps_of(part)]
    assert len(twice) > len(set(twice))  # what W&B's own upload would send
    assert "written as one run" in sync(server, str(run)).stdout
    assert_holds(server, run)
    wandb_id = status(run)["wandb_id"]
    assert server.runs[wandb_id]["displayName"] == "run"
    assert server.runs[wandb_id]["tags"] == ["a"]
    server.history.clear()
    assert "nothing more" in sync(server, str(run)).stdout
    assert not server.history
    assert train_command(f"resume={run}", "trainer.max_steps=18").returncode == 0
    sync(server, str(run))
    assert_holds(server, run)


def steps_of(part: Path) -> list[int]:
    (file,) = part.glob("*.wandb")
    return [r["history"]["step"]["num"] for r in inspect_file(file) if r["type"] == "history"]


@pytest.mark.slow
def test_replayed_offline_it_can_be_read(train_command: Command, tmp_path: Path) -> None:
    done = train_command(*RUN, "trainer.max_steps=4", "trainer.log_every=2", "logger=none", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*SYNC, str(tmp_path / "run"), "--offline", str(tmp_path / "look")],
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run/wandb").exists()
    (summary,) = inspect(tmp_path / "look", "--summary")
    assert summary["run_id"] == status(tmp_path / "run")["wandb_id"]
    assert summary["summary"]["final/val/loss"] == result(tmp_path / "run")["val/loss"]
    assert summary["summary"]["status"] == "finished"


@pytest.mark.slow
def test_what_stopped_a_run_is_noted(tmp_path: Path, train_command: Command) -> None:
    """failed, preempted, pruned, interrupted: as its status.json says."""
    done = train_command(*RUN, "trainer.max_steps=2", "logger=none", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    states = {"failed": 1, "preempted": 75, "pruned": 0, "interrupted": 255}
    for state in states:
        run = shutil.copytree(tmp_path / "run", tmp_path / state)
        write_json(run / "status.json", {**status(run), "status": state, "wandb_id": state})
    command = [*SYNC, *(str(tmp_path / state) for state in states), "--offline", str(tmp_path / "look")]
    assert subprocess.run(command, capture_output=True, timeout=limit(60)).returncode == 0
    for state, code in states.items():
        (file,) = (tmp_path / "look/wandb").glob(f"offline-*/run-{state}.wandb")
        (summary,) = inspect_file(file, "--summary")
        assert (summary["summary"]["status"], summary["exit_code"]) == (state, code)
        announced = any(record["type"] == "preempting" for record in inspect_file(file))
        assert announced == (state == "preempted")


@pytest.mark.slow
def test_a_sweep_is_a_group_with_a_summary(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "lr"
    options = [*RUN, "trainer.max_steps=4", "optim.lr=1e-3,1e-2", "seed=1,2", "logger.tags=[x]", "logger.artifact=true"]
    command = [*TRAIN, "-m", *options, "trainer.eval_every=2", "sweep=lr", f"hydra.sweep.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(100))
    assert done.returncode == 0, done.stderr
    names, scores = set(), []
    for path in sorted(path.parent for path in folder.glob("*/config.yaml")):
        (summary,) = inspect(path, "--summary")
        (begun,) = [record["run"] for record in inspect(path) if record["type"] == "run"][:1]
        assert (begun["run_group"], begun["job_type"], summary["tags"]) == ("lr", "train", ["x"])
        assert summary["config"]["run"]["sweep"]["sweep"] == "lr"
        names.add(summary["name"])
        scores.append(result(path)["val/loss"])
        (artifact,) = [record["artifact"] for record in inspect(path) if record["type"] == "artifact"]
        (entry,) = artifact["manifest"]["contents"]
        assert entry["local_path"] == result(path)["best_checkpoint"]  # not a copy of it
        assert (artifact["type"], artifact["name"]) == ("model", f"model-{summary['run_id']}")
        assert "best" in artifact["aliases"]
    assert names == {f"lr={lr} seed={seed}" for lr in ("0.001", "0.01") for seed in (1, 2)}
    (summary,) = inspect(folder, "--summary")
    (begun,) = [record["run"] for record in inspect(folder) if record["type"] == "run"][:1]
    assert (begun["run_group"], begun["job_type"], summary["name"]) == ("lr", "summary", "lr: summary")
    facts = summary["summary"]
    assert (facts["jobs"], facts["jobs/finished"], facts["best/n"]) == (4, 4, 2)
    assert facts["best/val/loss"] == pytest.approx(min(sum(scores[:2]) / 2, sum(scores[2:]) / 2))
    assert "optim.lr=0.01" in facts["best/overrides"]
    assert facts["table/jobs"]["nrows"] == 4


# ---- a sweep that W&B leads: what its agent would run, made by the agent's own code
AGENT = """
import json, os, sys
from wandb.wandb_agent import Agent

sweep, command = json.loads(sys.argv[1])
agent = object.__new__(Agent)
agent._sweep_command, agent._function, agent._in_jupyter, agent._forward_signals = sweep["command"], None, False, False
agent._run_processes = {}
agent._command_run(command)
sys.exit(agent._run_processes[command["run_id"]].wait())
"""


def run_agent(
    cwd: Path, sweep: dict[str, Any], values: dict[str, Any], run_id: str
) -> subprocess.CompletedProcess[str]:
    command = {
        "program": str(ROOT / sweep["program"]),
        "run_id": run_id,
        "args": {k: {"value": v} for k, v in values.items()},
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "WANDB_SWEEP_ID": "s1", "WANDB_PROJECT": "led", "WANDB_MODE": "offline"}
    return subprocess.run(
        [sys.executable, "-c", AGENT, json.dumps([sweep, command])],
        cwd=cwd, capture_output=True, text=True, timeout=limit(60), env=environment,
    )  # fmt: skip


def the_sweep(run_dir: Path, *more: str) -> dict[str, Any]:
    sweep = yaml.safe_load((ROOT / "conf" / "wandb_sweep.yaml").read_text())
    at = sweep["command"].index("${args_no_hyphens}")
    sweep["command"] = [
        *TRAIN,
        *sweep["command"][2:at],
        *RUN,
        "trainer.max_steps=2",
        f"hydra.run.dir={run_dir}",
        *more,
        "${args_no_hyphens}",
    ]
    return sweep


def some_values(parameters: dict[str, Any]) -> dict[str, Any]:
    """One value of each parameter, as a server would choose."""
    return {k: p["values"][-1] if "values" in p else p.get("value", p.get("min")) for k, p in parameters.items()}


@pytest.mark.slow
def test_the_sweep_yaml_runs_under_the_agent(tmp_path: Path) -> None:
    sweep = the_sweep(tmp_path / "run", "logger.entity=me")
    values = some_values(sweep["parameters"])
    done = run_agent(tmp_path, sweep, values, "abc123")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["optim"]["lr"] == values["optim.lr"]
    assert config["model"]["hidden"] == values["model.hidden"]
    assert config["trainer"]["clip_norm"] is None
    assert status(tmp_path / "run")["wandb_id"] == "abc123"
    (summary,) = inspect(tmp_path / "run", "--summary")
    assert (summary["run_id"], summary["project"], summary["state"]) == ("abc123", "led", "finished")
    assert "lr=0.0001" in summary["name"]
    (begun,) = [record["run"] for record in inspect(tmp_path / "run") if record["type"] == "run"][:1]
    assert begun["sweep_id"] == "s1"


@pytest.mark.slow
def test_two_ranks_under_the_agent_are_one_run(tmp_path: Path) -> None:
    sweep = the_sweep(tmp_path / "run", "trainer=ddp", "hardware.num_procs=2")
    done = run_agent(tmp_path, sweep, {"optim": {"lr": 0.01, "schedule": {"warmup": 0}}}, "abc124")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["optim"]["lr"], config["optim"]["schedule"]["warmup"]) == (0.01, 0)
    (summary,) = inspect(tmp_path / "run", "--summary")  # one directory of W&B's, so one run
    assert summary["run_id"] == "abc124"


def test_a_mistake_under_the_agent_ends_with_2(tmp_path: Path) -> None:
    done = run_agent(tmp_path, the_sweep(tmp_path / "run"), {"optim.larning_rate": 0.01}, "abc125")
    assert done.returncode == 2
    assert "error: optim.larning_rate: no such key" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"optim.lr": 1e-05}, {"optim.lr": 1e-05}),
        ({"optim": {"lr": 0.1, "betas": [0.9, 0.99]}}, {"optim.lr": 0.1, "optim.betas": [0.9, 0.99]}),
        ({"trainer.clip_norm": None}, {"trainer.clip_norm": None}),
        ({"hardware.compile": False}, {"hardware.compile": False}),
        ({"model.hidden": [16, 32]}, {"model.hidden": [16, 32]}),
        ({"logger.tags": ["a b", "c,d", "it's"]}, {"logger.tags": ["a b", "c,d", "it's"]}),
        ({"name": "a,b"}, {"name": "a,b"}),
        ({"name": "it's {odd: 'x'}"}, {"name": "it's {odd: 'x'}"}),
        ({"name": "plain/name-1"}, {"name": "plain/name-1"}),
        ({"name": "back\\slash,"}, {"name": "back\\slash,"}),
        ({"optim/schedule": "constant"}, {"optim.schedule._target_": "lab.optim.Constant"}),
        ({"model": "resnet"}, {"model._target_": "lab.models.resnet.ResNet"}),
    ],
)
def test_every_value_of_the_agent_arrives(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], wanted: dict[str, Any]
) -> None:
    from omegaconf import OmegaConf
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    from engine.config.compose import composed

    made = create_sweep_command_args({"args": {k: {"value": v} for k, v in values.items()}})["args_no_hyphens"]
    assert from_agent(made) == made  # not an agent's run: nothing is touched
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    cfg = OmegaConf.create(composed(from_agent(made)))
    for key, value in wanted.items():
        found = OmegaConf.select(cfg, key)
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value


def test_the_name_of_a_job_is_as_short_as_it_is_clear(tmp_path: Path) -> None:
    overrides = ["optim.lr=0.1", "model.dropout=0.5", "data.dropout=0.1", "+model.new=1", "trainer.max_steps=3"]
    run = tmp_path / "a"
    run.mkdir()
    swept = ["optim.lr", "model.dropout", "data.dropout", "model.new"]
    write_json(tmp_path / "sweep.json", {"swept": swept, "jobs": [{"key": "a", "number": 0, "overrides": overrides}]})
    assert run_name(run) == "lr=0.1 model.dropout=0.5 data.dropout=0.1 new=1"
    assert run_name(tmp_path / "other") == "other"
