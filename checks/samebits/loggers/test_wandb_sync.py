"""What W&B lacks of a run is sent: after a kill, an outage, offline parts, by a resume and by ./run sync.

Sweeps as groups; runs that W&B's agent starts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from common import QUICK, ROOT, TRAIN
from test_wandb import RUN, assert_holds, no_process_left, online
from wandb_server import Server, serving

from lab.program import PROGRAM
from samebits.config.wandb_agent import from_agent
from samebits.loggers.wandb_log import run_name
from samebits.loggers.wandb_upload import Feed
from samebits.runs import claimed, current_status, is_claimed, is_running, launching
from samebits.testing import kill_at, metrics, result, status
from samebits.testing.processes import at_once, called, free_port, limit, processes_with, sample_of, wait_for, warm

SYNC = [sys.executable, str(ROOT / "src" / "sync.py")]
STEPS = ("trainer.log_every=2", "trainer.eval_every=4", "trainer.save_every=4")
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def sync(server: Server, *arguments: str, code: int = 0) -> str:
    done = called([*SYNC, *arguments], code=code, seconds=100, env={**os.environ, **online(server)})
    assert not re.search(r"^wandb:", done.stderr, re.MULTILINE)
    return done.stdout + done.stderr


def kill_senders(run: Path) -> None:
    """The process that sends a run, and below it wandb-core."""
    for pid in processes_with(str(run)):
        listed = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True).stdout
        for one in (pid, *map(int, listed.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


def settled(run: Path) -> None:
    """Its own process has ended."""
    wait_for(lambda: not processes_with(str(run)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An offline run with pictures, for tests to copy. Nothing of wandb is started for it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    command = [*TRAIN, *RUN, *STEPS, "trainer.max_steps=12", "callback=pictures", f"hydra.run.dir={run}"]
    warm.run(command, check=True, env={**os.environ, "WANDB_MODE": "offline"})
    assert [path.name for path in (run / "wandb").iterdir()] == ["summary.json"]
    assert "final/val/loss" in json.loads((run / "wandb/summary.json").read_text())
    return run


@pytest.mark.slow
def test_offline_runs_are_sent_once(finished: Path, tmp_path: Path, server: Server) -> None:
    """With pictures, and what stopped three others is noted as their status.json says."""
    run = shutil.copytree(finished, tmp_path / "sweep/run")
    ends = {"failed": (1, "failed"), "pruned": (0, "finished"), "interrupted": (255, "killed")}
    for end in ends:
        copied = shutil.copytree(run, tmp_path / end)
        (copied / "status.json").write_text(json.dumps({**status(run), "status": end, "wandb_id": end}))
    count = len(metrics(run))
    server.ill = lambda path: 401
    said = sync(server, str(run), code=1)
    assert "1 of 1 run failed: repeat the command" in said
    assert "nothing is lacking" not in said
    server.ill = None
    assert sync(server, str(tmp_path)).count(f"{count} of {count} lines sent") == 4
    assert_holds(server, run)
    for end, (code, state) in ends.items():
        assert_holds(server, tmp_path / end, state)
        assert (server.exits[end], server.summaries[end]["status"]) == (code, end)
    shown = [name for name in server.files[status(run)["wandb_id"]] if name.startswith("media/")]
    assert len(shown) == len([line for line in metrics(run) if "media" in line]) > 0
    asked = server.asked.total()
    assert "nothing is lacking" in sync(server, str(run))
    assert server.asked.total() == asked
    begun = server.asked["UpsertBucket"]
    (run / "wandb/sent.json").unlink()  # then the server is asked
    assert "complete" in sync(server, str(run))
    assert server.asked["UpsertBucket"] == begun
    assert_holds(server, run)


@pytest.mark.slow
def test_a_run_that_runs_offline_is_sent_as_far_as_it_is(finished: Path, tmp_path: Path, server: Server) -> None:
    """Each time what is new, and its end when it has ended."""
    run, lines = tmp_path / "run", (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(finished, run)
    end, name = status(run), status(run)["wandb_id"]
    with claimed(run):
        (run / "status.json").write_text(json.dumps({**end, "status": "running"}))
        for count, new in ((3, 3), (7, 4)):
            (run / "metrics.jsonl").write_text("".join(lines[:count]) + '{"step": 12, "tr')  # being written
            said = sync(server, str(run))
            assert f"{new} of {count} lines sent; it is still running, so repeat this later" in said
            assert "nothing is lacking in W&B, except later records of 1 running run" in said
            assert len(server.rows(name)) == count
            assert server.summaries[name]["status"] == "running"
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "status.json").write_text(json.dumps(end))
    sync(server, str(run))
    assert_holds(server, run)


@pytest.mark.slow
def test_a_watch_sends_runs_while_they_grow_and_ends_with_them(finished: Path, tmp_path: Path, server: Server) -> None:
    """Each line once, none of them half, also across the kill of a watch; a queued run is waited for."""
    run, lines = tmp_path / "run", (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(finished, run)
    queued = shutil.copytree(finished, tmp_path / "queued")
    end, name = status(run), status(run)["wandb_id"]
    (queued / "metrics.jsonl").unlink()
    (queued / "status.json").write_text(json.dumps({**end, "status": "queued", "wandb_id": "queued"}))
    (run / "metrics.jsonl").write_text("")
    command = [*SYNC, str(tmp_path), "--watch", "--every", "1"]
    environment = {**os.environ, **online(server)}

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    watching = begin()
    try:
        with launching(tmp_path):
            with claimed(run), open(run / "metrics.jsonl", "a") as file:
                (run / "status.json").write_text(json.dumps({**end, "status": "running"}))
                for i, line in enumerate(lines[:6]):
                    half = len(line) // 2
                    file.write(line[:half])
                    file.flush()
                    if i == 3:
                        watching.send_signal(signal.SIGINT)
                        said = watching.communicate(timeout=limit(60))[0]
                        assert watching.returncode == 130
                        assert "continues where this one stopped" in said
                        assert "Traceback" not in said
                        watching = begin()
                    if i % 2:
                        wait_for(lambda i=i: len(server.rows(name)) == i)  # type: ignore[misc]
                    file.write(line[half:])
                    file.flush()
                wait_for(lambda: len(server.rows(name)) == 6)
                assert server.summaries[name]["status"] == "running"
                asked = server.asked.total()
                file.writelines(lines[6:])
            (run / "status.json").write_text(json.dumps(end))
            wait_for(lambda: server.summaries[name]["status"] == "finished")
            assert server.asked.total() > asked
            assert watching.poll() is None  # a run is queued
            shutil.copy(finished / "metrics.jsonl", queued)
            (queued / "status.json").write_text(json.dumps({**end, "wandb_id": "queued"}))
            said = watching.communicate(timeout=limit(60))[0]
    finally:
        watching.kill()
    assert watching.returncode == 0, said
    assert "watching 1 running, 1 queued; Ctrl-C stops" in said
    assert "nothing is lacking in W&B" in said
    assert_holds(server, run)
    assert_holds(server, queued)
    assert not server.changed


def test_a_watch_waits_for_queued_runs_only_while_something_will_run_them(tmp_path: Path) -> None:
    """SLURM has refused them; SLURM's queue has batch jobs of the sweep; a command on another host runs it."""
    sweep, programs = tmp_path / "sweep", tmp_path / "bin"
    programs.mkdir()
    said = {
        "sbatch": "echo 'sbatch: error: Invalid account' >&2; exit 1",
        "squeue": f"cat {shlex.quote(str(tmp_path))}/queue",
    }
    for name, line in (said | {"scontrol": ""}).items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "queue").write_text("")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    begin = [*TRAIN, *QUICK, "-m", "hydra/launcher=slurm", "seed=0,1", "trainer.max_steps=4"]
    assert "Invalid account" in called([*begin, f"hydra.sweep.dir={sweep}"], code=1, env=environment).stderr
    watch = [*SYNC, str(sweep), "--watch", "--every", "1"]
    ends = f"{sweep}: not waiting for 2 queued runs, because no command and no batch job runs the sweep; to run the"
    assert ends in called(watch, env=environment).stdout
    (sweep / ".slurm/20260101-000000-00000000.sh").touch()
    (tmp_path / "queue").write_text(f"{sweep}/.slurm/20260101-000000-00000000.sh\n")
    elsewhere = sweep / ".launching.elsewhere.5"
    for end in (lambda: (tmp_path / "queue").write_text(""), lambda: os.utime(elsewhere, (0, 0))):
        with subprocess.Popen(watch, env=environment, stdout=subprocess.PIPE, text=True) as watching:
            try:
                assert watching.stdout
                assert watching.stdout.readline() == "watching 2 queued; Ctrl-C stops\n"
                assert watching.poll() is None
                end()
                assert ends in watching.communicate(timeout=limit(60))[0]
            finally:
                watching.kill()
        elsewhere.touch()
        for run in sweep.glob("seed*"):
            os.utime(run / "status.json", (0, 0))


@pytest.mark.slow
def test_a_watch_names_a_preempted_run_and_the_command_that_resumes_it(tmp_path: Path) -> None:
    """A job of a sweep is resumed by the sweep's command."""
    there = f"logger.mlflow.tracking_uri=file:{tmp_path}/mlruns"
    run, sweep = tmp_path / "runs/one", tmp_path / "runs/sweep"
    stop = ["trainer.max_steps=4", "process.stop_at_step=2"]
    begin = [*TRAIN, *QUICK, "logger=mlflow", there, *stop, f"hydra.run.dir={run}"]
    assert f"resume={run}" in called(begin, code=75).stderr
    shutil.copytree(run, sweep / "job")
    (sweep / "sweep.json").write_text("{}")
    watch = [*SYNC, str(run), str(sweep / "job"), "--watch"]
    lines = called(watch).stdout.splitlines()
    assert [line for line in lines if str(run) in line and "MLflow" not in line] == [
        f"{run}: preempted, not running; to resume it: ./run train resume={run}"
    ]
    assert [line for line in lines if "not waiting" in line] == [
        f"{sweep}: not waiting for 1 queued run, because no command and no batch job runs the sweep; to run the "
        "rest of it, repeat its command"
    ]


def test_a_folder_without_runs_has_nothing_to_send(tmp_path: Path) -> None:
    """Also without an API key. A watch ends, as when all runs have ended."""
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path)}
    for more in ([], ["--watch"]):
        done = called([*SYNC, str(tmp_path), *more], env=environment)
        assert (done.stdout, done.stderr) == (f"{tmp_path}: no runs, so there is nothing to send\n", "")


@pytest.mark.slow
def test_a_watch_without_a_key_of_wandb_sends_the_runs_of_mlflow(finished: Path, tmp_path: Path) -> None:
    """Each run of W&B has its line; if all log to W&B, the missing key is an error at once."""
    shutil.copytree(finished, tmp_path / "runs/wandb")
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path)}
    watch = [*SYNC, str(tmp_path / "runs"), "--watch", "--every", "1"]
    done = called(watch, code=2, env=environment)
    assert done.stderr.startswith("error: W&B has no API key")
    there = f"logger.mlflow.tracking_uri=file:{tmp_path}/mlruns"
    run = tmp_path / "runs/mlflow"
    called([*TRAIN, *QUICK, "logger=mlflow", there, "trainer.max_steps=4", f"hydra.run.dir={run}"])
    (run / "mlflow.json").unlink()
    done = called(watch, code=2, env=environment)
    assert "runs/mlflow: MLflow: MLflow is complete" in done.stdout
    assert "runs/wandb: W&B: failed: ConfigError: W&B has no API key" in done.stderr


def test_what_a_watch_cannot_do_is_an_error(tmp_path: Path) -> None:
    for arguments, said in (
        (["--watch", "--replay"], "--watch: cannot be used with --replay"),
        (["--watch", "--every", "0"], "--every 0: give at least 1 second"),
        (["--every", "5"], "--every 5: has no effect without --watch"),
    ):
        assert said in called([*SYNC, str(tmp_path), *arguments], code=2).stderr


@pytest.mark.slow
def test_lines_of_an_end_during_the_upload_are_not_taken_for_sent(finished: Path, tmp_path: Path) -> None:
    """The status is that before the lines were read, so the next upload sends the rest."""
    run, lines = tmp_path / "run", (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(finished, run)
    end = status(run)
    (run / "metrics.jsonl").write_text("".join(lines[:3]))
    with claimed(run):
        (run / "status.json").write_text(json.dumps({**end, "status": "running"}))
        feed = Feed(run)
        read = len(list(feed))
        (run / "metrics.jsonl").write_text("".join(lines))
        (run / "status.json").write_text(json.dumps(end))
    assert (read, feed.status) == (3, "running")


def test_a_run_of_another_host_runs_as_long_as_it_writes(tmp_path: Path) -> None:
    """Not every shared file system shows the locks of other hosts."""
    (tmp_path / "status.json").write_text('{"status": "running"}')
    (tmp_path / "environment.json").write_text('{"host": "elsewhere"}')
    assert (is_running(tmp_path), current_status(tmp_path)) == (True, "running")
    os.utime(tmp_path / "status.json", (0, 0))
    assert (is_running(tmp_path), current_status(tmp_path)) == (False, "killed")
    (tmp_path / "metrics.jsonl").touch()
    assert is_running(tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps({"host": os.uname().nodename}))
    assert not is_running(tmp_path)


def test_the_marker_of_a_dead_run_of_another_host_does_not_count(tmp_path: Path) -> None:
    """Without flock, nobody here can check if the process that the marker names is alive."""
    (tmp_path / "status.json").write_text('{"status": "running"}')
    (tmp_path / "environment.json").write_text('{"host": "elsewhere"}')
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock.held").write_text("1\nelsewhere\n")
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "no flock")):
        assert (is_running(tmp_path), current_status(tmp_path)) == (True, "running")
        os.utime(tmp_path / "status.json", (0, 0))
        assert is_running(tmp_path), "it has just claimed the run, and written nothing yet"
        os.utime(tmp_path / ".lock.held", (0, 0))
        assert is_claimed(tmp_path), "only the user can remove it"
        assert (is_running(tmp_path), current_status(tmp_path)) == (False, "killed")
        (tmp_path / ".lock.held").write_text(f"{os.getpid()}\n{os.uname().nodename}\n")
        os.utime(tmp_path / ".lock.held", (0, 0))
        assert is_running(tmp_path), "a process of this host"
    (tmp_path / ".lock.held").write_text("1\nelsewhere\n")
    os.utime(tmp_path / ".lock.held", (0, 0))
    with claimed(tmp_path):
        assert is_running(tmp_path), "the lock is the kernel's; the marker is older"


@pytest.mark.slow
def test_online_and_offline_parts_are_one_run(train_command: Command, tmp_path: Path, server: Server) -> None:
    """Online, offline, online on another machine (a copy of the directory); a lost file comes again."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    begin = [*RUN, *STEPS, "callback=pictures", "hydra.run.dir=run", "trainer.max_steps=8"]
    train_command(*begin, **online(server))
    settled(run)
    train_command(f"resume={run}", "trainer.max_steps=12")
    shutil.move(run, moved)
    name = status(moved)["wandb_id"]
    lost = next(file for file in server.files[name] if file.startswith("media/"))
    del server.files[name][lost]
    train_command(f"resume={moved}", "trainer.max_steps=16", **online(server))
    settled(moved)
    assert_holds(server, moved)
    assert lost in server.files[name]
    assert server.steps(name)[-1] == 16


@pytest.mark.slow
@pytest.mark.parametrize("ill", [*sample_of(["dead"], ["slow", "dead", "well"]), "changed"])
def test_a_killed_run_that_is_resumed_has_no_hole(tmp_path: Path, server: Server, ill: str) -> None:
    """kill -9 of the run, or of it, its process and wandb-core (dead): the resume sends what the server lacks. If it
    logs other lines than those that were sent (changed), they are of a new run."""
    run = tmp_path / "run"
    overrides = (*RUN, *STEPS, "trainer.max_steps=24", f"hydra.run.dir={run}")
    os.environ.update(online(server))
    try:
        server.ill = {"slow": lambda path: 0.5 if "file_stream" in path else None,
                      "dead": lambda path: "hang" if "file_stream" in path else None}.get(ill)  # fmt: skip
        kill_at(run, 8, overrides)
        if ill == "dead":
            kill_senders(run)
        server.ill = None
        if ill == "changed":
            settled(run)
            with open(run / "metrics.jsonl", "a") as file:  # in case it was killed when a checkpoint held all lines
                file.write('{"step": 23}\n')
        more = ["trainer.log_every=3"] if ill == "changed" else []
        said = called([*TRAIN, f"resume={run}", *more], seconds=100).stderr
        assert ("because trainer.log_every changed after lines were sent" in said) == (ill == "changed")
    finally:
        os.environ["WANDB_MODE"] = "offline"
    settled(run)
    assert "nothing is lacking" in sync(server, str(run))
    assert_holds(server, run)


@pytest.mark.slow
def test_what_an_ill_server_has_not_got_is_sent_by_the_command_that_the_run_prints(
    train_command: Command, tmp_path: Path
) -> None:
    """Without a network, or where the server says nothing or refuses, the run ends at once and well, and prints one
    command. That sends all."""

    def one(case: tuple[Any, str]) -> None:
        ill, asked = case
        name = f"{ill}{asked}"
        with serving() as server, no_process_left(tmp_path / name):
            server.ill = lambda path: ill if asked in path else None
            there = online(server)
            if ill == "nobody":
                there["WANDB_BASE_URL"] = f"http://127.0.0.1:{free_port()}"
            done = train_command(*RUN, *STEPS, "trainer.max_steps=6", f"hydra.run.dir={name}", **there)
            assert done.stderr.count(f"./run sync {name}") == 1, done.stderr
            assert done.stderr.count("W&B:") in (1, 2), done.stderr  # 2: its reason came after that of the run's end
            assert "wandb:" not in done.stderr
            assert status(tmp_path / name)["status"] == "finished"
            server.ill = None
            said = sync(server, str(tmp_path / name))
            assert "lines sent" in said or "nothing is lacking" in said
            if ill != "nobody":  # its own process goes on trying where nobody ever answers
                settled(tmp_path / name)
            assert_holds(server, tmp_path / name)

    everything = [(ill, "") for ill in sample_of(["nobody", "hang", 401], ["nobody", "hang", 401, 500])]
    streams = [(ill, "file_stream") for ill in sample_of([403, "hang"], [500, 403, 429, "hang", "drop"])]
    at_once(one, [*everything, *streams])


@pytest.mark.slow
def test_two_at_once_send_each_line_once(finished: Path, tmp_path: Path, server: Server) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    at_once(lambda _: sync(server, str(run)), "12")
    assert_holds(server, run)


@pytest.mark.slow
def test_what_is_no_beginning_of_metrics_is_sent_as_a_new_run(finished: Path, tmp_path: Path, server: Server) -> None:
    """A row for each step, as older versions wrote: whole, it stays; with a hole, the run is sent under a new id."""
    run = shutil.copytree(finished, tmp_path / "run")
    old = status(run)["wandb_id"]
    steps = sorted({line["step"] for line in metrics(run)})
    server.runs[old] = {"project": "default"}
    server.summaries[old], server.states[old] = {"status": "finished"}, "finished"
    server.history[old] = {i: {"_step": step, "step": step} for i, step in enumerate(steps)}
    assert "complete" in sync(server, str(run))
    (run / "wandb/sent.json").unlink()
    del server.history[old][len(steps) - 2]
    said = sync(server, str(run))
    assert f"as a new run {status(run)['wandb_id']}" in said
    assert status(run)["wandb_id"] != old
    assert_holds(server, run)
    sync(server, str(run), "--replay")
    assert len(server.runs) == 3
    assert_holds(server, run)


@pytest.mark.slow
def test_written_offline_it_can_be_read(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    command = [*SYNC, str(run), "--offline", str(tmp_path / "look")]
    called(command)
    assert [path.name for path in (run / "wandb").iterdir()] == ["summary.json"]
    (file,) = (tmp_path / "look/wandb").glob("offline-run-*/*.wandb")
    wandb = str(Path(sys.executable).with_name("wandb"))
    read = subprocess.run([wandb, "leet", "inspect", str(file), "--json", "--summary"], capture_output=True, text=True)
    summary = json.loads(read.stdout)
    assert summary["run_id"] == status(run)["wandb_id"]
    assert summary["summary"]["final/val/loss"] == result(run)["val/loss"]


def test_a_folder_that_cannot_be_made_is_named_as_wandb_would_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = called([*SYNC, str(ROOT / "checks/runs"), "--offline", str(tmp_path / "file/look")], code=2)
    assert done.stderr == f"error: {tmp_path}/file/look: Not a directory\n"
    assert not done.stdout


@pytest.mark.slow
def test_a_sweep_is_a_group_with_a_summary(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "sweeps" / "lr"
    options = [*RUN, "trainer.max_steps=4", "optim.lr=1e-3,1e-2", "seed=1,2", "logger.tags=[x]", "logger.artifact=true"]
    command = [*TRAIN, "-m", *options, "trainer.eval_every=2", "sweep=lr", f"hydra.sweep.dir={folder}"]
    called(command, seconds=100, env={**os.environ, **online(server)})
    settled(folder)
    names, scores = set(), []
    for path in sorted(path.parent for path in folder.glob("*/config.yaml")):
        assert_holds(server, path)
        run = server.runs[status(path)["wandb_id"]]
        assert (run["groupName"], run["jobType"], run["tags"]) == ("lr", "train", ["x"])
        assert server.configs[status(path)["wandb_id"]]["run"]["value"]["sweep"]["sweep"] == "lr"
        names.add(run["displayName"])
        scores.append(result(path)["val/loss"])
    assert [made["state"] for made in server.artifacts.values() if made["artifactTypeName"] == "model"] == 4 * [
        "COMMITTED"
    ]
    assert names == {f"lr={lr} seed={seed}" for lr in ("0.001", "0.01") for seed in (1, 2)}
    ((name, run),) = [(name, run) for name, run in server.runs.items() if run["jobType"] == "summary"]
    assert (run["groupName"], run["displayName"]) == ("lr", "lr: summary")
    facts = server.summaries[name]
    assert (facts["jobs"], facts["jobs/finished"], facts["best/n"]) == (4, 4, 2)
    assert facts["best/val/loss"] == pytest.approx(min(sum(scores[:2]) / 2, sum(scores[2:]) / 2))
    assert "optim.lr=0.01" in facts["best/overrides"]
    assert facts["table/jobs"]["nrows"] == 4


# ---- a sweep that W&B leads: arguments as its agent makes them


def some_values() -> dict[str, Any]:
    """One value of each parameter of the shipped sweep, as a server would choose."""
    parameters = yaml.safe_load((ROOT / "conf" / "wandb_sweep.yaml").read_text())["parameters"]
    return {k: p["values"][-1] if "values" in p else p.get("value", p.get("min")) for k, p in parameters.items()}


BY_KEY = {
    "optim.lr": 1e-05,
    "trainer.clip_norm": None,
    "hardware.compile": False,
    "model.hidden": [16, 32],
    "logger.tags": ["a b", "c,d", "it's"],
    "name": "it's {odd: 'x'}",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (some_values(), some_values()),
        (
            {"optim": {"lr": 0.1, "betas": [0.9, 0.99], "schedule": {"warmup": 0}}, "name": "a,b"},
            {"optim.lr": 0.1, "optim.betas": [0.9, 0.99], "optim.schedule.warmup": 0, "name": "a,b"},
        ),
        (BY_KEY, BY_KEY),
        (
            {"optim/schedule": "constant", "model": "resnet", "name": "back\\slash,"},
            {
                "optim.schedule._target_": "lab.schedules.constant.Constant",
                "model._target_": "lab.models.resnet.ResNet",
                "name": "back\\slash,",
            },
        ),
        ({"name": "plain/name-1"}, {"name": "plain/name-1"}),
    ],
)
def test_every_value_of_the_agent_arrives(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], wanted: dict[str, Any]
) -> None:
    from omegaconf import OmegaConf
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    from samebits.config import composed

    made = create_sweep_command_args({"args": {k: {"value": v} for k, v in values.items()}})["args_no_hyphens"]
    assert from_agent(PROGRAM, made) == made  # not an agent's run: nothing is touched
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    cfg = OmegaConf.create(composed(PROGRAM, from_agent(PROGRAM, made)))
    for key, value in wanted.items():
        found = OmegaConf.select(cfg, key)
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value


def test_the_name_of_a_job_is_as_short_as_it_is_clear(tmp_path: Path) -> None:
    overrides = ["optim.lr=0.1", "model.dropout=0.5", "data.dropout=0.1", "+model.new=1", "trainer.max_steps=3"]
    run = tmp_path / "a"
    run.mkdir()
    swept = ["optim.lr", "model.dropout", "data.dropout", "model.new"]
    (tmp_path / "sweep.json").write_text(
        json.dumps({"swept": swept, "jobs": [{"key": "a", "number": 0, "overrides": overrides}]})
    )
    assert run_name(PROGRAM, run) == "lr=0.1 model.dropout=0.5 data.dropout=0.1 new=1"
    assert run_name(PROGRAM, tmp_path / "other") == "other"
