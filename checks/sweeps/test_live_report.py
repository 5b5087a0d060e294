"""./run report --serve: a page of runs that are running, which reads each line once and shows nothing else."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from common import QUICK, ROOT

from lab.program import PROGRAM
from samebits.runs import claimed
from samebits.sweeps.report import read_study
from samebits.testing import metrics
from samebits.testing.processes import called, free_port, held_command, limit, wait_for, warm

REPORT = [sys.executable, str(ROOT / "src" / "report.py")]
KEY = "train/loss"


def made(folder: Path, status: str = "finished") -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "status.json").write_text(json.dumps({"status": status}))


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that it prints first, and its process."""
    command = [*REPORT, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, *more = (process.stdout.readline().strip() for _ in range(4))
        assert "ssh -N -L" in more[1]
        yield address, process
    finally:
        process.kill()
        process.communicate()


def asked(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(address, headers=headers), timeout=limit(30)) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def data(address: str, since: int = 0, key: str = KEY) -> dict[str, Any]:
    code, text = asked(f"{address}data.json?since={since}&key={key}")
    assert code == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def test_only_the_printed_address_answers_and_only_with_its_pages(tmp_path: Path) -> None:
    made(tmp_path / "runs/a")
    (tmp_path / "secret").write_text("secret")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with served(str(tmp_path / "runs"), "--serve", "0") as (address, process):
        assert address.startswith("http://127.0.0.1:")
        code, text = asked(address)
        assert code == 200
        assert "http://" not in text.replace("http://www.w3.org", "").replace(address, "")
        assert "src=" not in text
        host = address.split("/")[2]
        for path in ("", "data.json", "report", "x/data.json"):
            assert asked(f"http://{host}/{path}")[0] == 403
        for path in ("../secret", "..%2fsecret", "web/page.css", "data.json/x", "/etc/passwd", "%00"):
            code, text = asked(address + path)
            assert (code, "secret" in text) == (404, False), path
        assert asked(address, Host="evil.example:80")[0] == 403
        assert asked(f"{address}data.json?since=-1")[0] == 400
        taken = called([*REPORT, str(tmp_path), "--serve", host.split(":")[1]], code=2).stderr
        assert taken.startswith(f"error: --serve {host.split(':')[1]}: the port is in use; give another one")
        assert taken.count("\n") == 1
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=limit(30)) == ("", "")
        assert process.returncode == 130
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_with_remote_it_names_the_host_and_the_end_that_the_user_can_type(tmp_path: Path) -> None:
    """Not its own name, which ssh on the laptop may not know, and not Ctrl-C, which ends only the display there."""
    remote = {"RUN_REMOTE": "./run remote --folder x box", "RUN_REMOTE_HOST": "box"}
    ends = "Ctrl-C ends only the display, ./run remote --folder x box stop ends this command"
    command = [*REPORT, str(tmp_path), "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **remote}) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
        finally:
            process.kill()
    assert lines[2].endswith(" box\n")
    assert lines[3] == f"{ends}.\n"


def test_states_are_those_of_the_report(tmp_path: Path) -> None:
    """Of runs of this host and of another one, with and without a process, that have written just now or long ago."""
    states = {
        "alive": ("running", "", 0), "gone": ("running", "", 60), "gone before it began": ("created", "", 60),
        "far": ("running", "elsewhere", 60), "far and gone": ("running", "elsewhere", 700),
        "queued": ("queued", "", 700), "failed": ("failed", "", 0),
    }  # fmt: skip
    for name, (status, host, age) in states.items():
        made(tmp_path / name, status)
        (tmp_path / name / "environment.json").write_text(json.dumps({"host": host or platform.node()}))
        os.utime(tmp_path / name / "status.json", (time.time() - age,) * 2)
    with claimed(tmp_path / "alive"), served(str(tmp_path), "--serve", "0") as (address, _):
        wait_for(lambda: data(address)["read"] == len(states))
        shown = {run["name"]: run["status"] for run in data(address)["runs"]}
        told = {job.key: job.status for job in read_study(PROGRAM, [tmp_path]).jobs}
    assert told == shown
    assert {name for name, status in told.items() if status == "killed"} == {
        "gone", "gone before it began", "far and gone"
    }  # fmt: skip


def test_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    made(tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    port = str(free_port())
    for how in (signal.SIGKILL, signal.SIGTERM):
        with served(str(tmp_path), "--serve", port) as (address, process):
            wait_for(lambda address=address: data(address)["count"] == 1)  # type: ignore[misc]
            process.send_signal(how)
            process.wait(limit(30))
        with suppress(OSError):
            asked(address)
            raise AssertionError("it still answers")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_has_no_effect_is_an_error(tmp_path: Path) -> None:
    for arguments, said in (
        (["--serve", "--save-best"], "--save-best: has no effect with --serve"),
        (["--serve", str(tmp_path)], "name directories before it"),
        (["--serve", "70000"], "must be a port from 0 to 65535"),
        ([str(tmp_path / "none"), "--serve"], "no such directory"),
        ([], "required: directories"),
    ):
        assert said in called([*REPORT, *arguments], code=2).stderr


@pytest.mark.slow
def test_the_page_follows_a_run_that_trains(tmp_path: Path) -> None:
    """What it has at the end is what metrics.jsonl and result.json have; it was running in between."""
    halfway = held_command(2000, tmp_path / "seen")
    command = [*halfway, *QUICK, "trainer.max_steps=4000", "trainer.log_every=20", "trainer.eval_every=1000"]
    seen: list[tuple[str, int]] = []
    with served(str(tmp_path), "--serve", "0") as (address, _):
        training = warm.Popen([*command, f"hydra.run.dir={tmp_path}/run"], stderr=subprocess.DEVNULL)
        try:
            while not seen or seen[-1][0] != "finished":
                for run in data(address)["runs"]:
                    assert run["curve"][0] == sorted({*run["curve"][0]})
                    seen.append((run["status"], run["step"]))
                    if run["status"] == "running" and run["step"]:
                        (tmp_path / "seen").touch()
                assert training.poll() in (None, 0)
                time.sleep(0.3)
        finally:
            training.kill()
            training.wait()
        assert any(0 < step < 4000 for status, step in seen if status == "running")
        (run,) = data(address, key="val/loss")["runs"]
        points = [(row["step"], row["val/loss"]) for row in metrics(tmp_path / "run") if "val/loss" in row]
        assert run["curve"][0] == [step for step, _ in points]
        assert run["curve"][1] == pytest.approx([value for _, value in points], rel=1e-5)
        assert run["score"] == json.loads((tmp_path / "run/result.json").read_text())["val/loss"]
        assert run["log"]
        assert run["name"] == "run"
        code, text = asked(f"{address}report")
        assert (code, "Learning curves" in text) == (200, True), text[:300]
