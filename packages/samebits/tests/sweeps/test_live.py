"""Runs that are running, as ./run report --serve keeps them: each line is read once, and states are the true ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from samebits.runs import claimed
from samebits.sweeps.report import live
from samebits.sweeps.report.live import Curve, LiveRuns

KEY = "train/loss"


def made(folder: Path, status: str = "running", steps: int = 0, **more: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "status.json").write_text(json.dumps({"status": status, **more}))
    write(folder, 0, steps)
    return folder


def line(step: int) -> str:
    return json.dumps({"step": step, "time": time.time(), KEY: 1 / (1 + step), "val/loss": None}) + "\n"


def write(folder: Path, begin: int, end: int, more: str = "") -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("".join(map(line, range(begin, end))) + more)


def of(runs: LiveRuns, name: str) -> dict[str, Any]:
    return next(run for run in runs.rows(KEY, 0)["runs"] if run["name"] == name)


def test_each_line_is_read_once_and_none_half(tmp_path: Path) -> None:
    run = made(tmp_path / "a", steps=3)
    runs = LiveRuns([tmp_path], tmp_path)
    runs.refresh()
    assert of(runs, "a")["curve"] == [[0, 1, 2], [1.0, 0.5, 0.333333]]
    half = line(3)
    write(run, 0, 0, half[:9])
    runs.refresh()
    assert of(runs, "a")["step"] == 2
    write(run, 0, 0, half[9:] + "no json\n[]\n")
    write(run, 4, 6)
    runs.refresh()
    assert of(runs, "a")["curve"][0] == [0, 1, 2, 3, 4, 5]
    version = runs.rows(KEY, 0)["version"]
    runs.refresh()
    assert runs.rows(KEY, version)["runs"] == []  # nothing new: nothing is sent


def test_a_run_that_has_finished_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that ends between two of the reads of one look."""
    run = made(tmp_path / "a", steps=3)
    real = live.read_json

    def read(path: Path) -> Any:
        if path.name == "status.json":
            write(run, 3, 4)
            (run / "result.json").write_text(f'{{"{KEY}": 0.25}}')
            (run / "status.json").write_text('{"status": "finished"}')
        return real(path)

    monkeypatch.setattr(live, "read_json", read)
    runs = LiveRuns([tmp_path], tmp_path)
    runs.refresh()
    found = of(runs, "a")
    assert (found["status"], found["score"], found["step"]) == ("finished", 0.25, 3)


def test_what_is_no_number_for_a_page_is_left_out(tmp_path: Path) -> None:
    run = made(tmp_path / "a", "finished", steps=1)
    large = "1" + "0" * 400
    (run / "result.json").write_text(f'{{"val/x": NaN, "val/y": Infinity, "val/z": {large}, "{KEY}": 0.5}}')
    write(run, 0, 0, f'{{"step": 1, "val/z": {large}, "{KEY}": 0.25}}\n')
    runs = LiveRuns([tmp_path], tmp_path)
    runs.refresh()
    assert of(runs, "a")["curve"] == [[0, 1], [1.0, 0.25]]
    assert of(runs, "a")["score"] == 0.5
    for key in ("val/x", "val/y", "val/z"):
        json.dumps(runs.rows(key, 0), allow_nan=False)


def test_a_resume_that_takes_lines_back_is_read_anew(tmp_path: Path) -> None:
    """Also where the new file is longer, or has the number of the old one."""
    run = made(tmp_path / "a", steps=6)
    runs = LiveRuns([tmp_path], tmp_path)
    runs.refresh()
    for again in (range(3), [0, 1, 2, *range(10, 30)]):
        with open(run / "metrics.jsonl", "r+") as file:
            file.truncate()
            file.writelines(map(line, again))
        runs.refresh()
        assert of(runs, "a")["curve"][0] == list(again)


def test_files_that_have_not_changed_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of runs that have ended only the sizes are asked for, and of one that grows its new bytes."""
    for i in range(2000):
        made(tmp_path / f"sweep/{i}", "finished", 2)
    growing = made(tmp_path / "sweep/growing", steps=2)
    runs = LiveRuns([tmp_path], tmp_path)
    runs.refresh()
    assert runs.rows(KEY, 0)["count"] == runs.read == 2001
    opened: list[Path] = []
    real = live.open_regular
    monkeypatch.setattr(live, "open_regular", lambda path: opened.append(path) or real(path))
    monkeypatch.setattr(live, "read_json", lambda path: opened.append(path) or {"status": "running"})
    version = runs.rows(KEY, 0)["version"]
    write(growing, 2, 3)
    runs.refresh()
    assert {path.parent for path in opened} == {growing}
    assert [run["name"] for run in runs.rows(KEY, version)["runs"]] == ["sweep/growing"]


def test_states_are_those_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is gone, one that is silent, a run of another host, a damaged file, a removed directory."""
    monkeypatch.setattr(live, "ASK_S", 0.0)
    monkeypatch.setattr(live, "SCAN_S", 0.0)
    monkeypatch.setattr(live, "SCAN_SHARE", 0.0)
    made(tmp_path / "failed", "failed", 2, error="RuntimeError: <b>\u001b[31m\nmore")
    for name in ("alive", "silent", "killed", "far"):
        made(tmp_path / name, steps=2)
    (tmp_path / "far/environment.json").write_text('{"host": "elsewhere"}')
    made(tmp_path / "damaged")
    (tmp_path / "damaged/status.json").write_text("{")
    made(tmp_path / "link")
    (tmp_path / "link/train.log").symlink_to("/etc/passwd")
    (tmp_path / "alive/train.log").write_text("first\nstep 3 \u001b[2J of 9\n\n")
    for name in ("status.json", "metrics.jsonl"):
        os.utime(tmp_path / "silent" / name, (0, 0))
    runs = LiveRuns([tmp_path], tmp_path)
    with claimed(tmp_path / "alive"), claimed(tmp_path / "silent"):
        runs.refresh()
    found = {run["name"]: run for run in runs.rows(KEY, 0)["runs"]}
    assert {name: run["status"] for name, run in found.items()} == {
        "failed": "failed", "alive": "running", "silent": "silent", "killed": "killed", "far": "running",
        "damaged": "unreadable", "link": "unreadable",
    }  # fmt: skip
    assert "\u001b" not in found["failed"]["error"] + found["alive"]["log"]
    assert found["alive"]["log"].startswith("step 3")
    assert "root:" not in json.dumps(found)
    (tmp_path / "failed").rename(tmp_path / "renamed")
    runs.refresh()
    assert runs.rows(KEY, 0)["gone"] == ["failed"]
    assert of(runs, "renamed")["status"] == "failed"


def test_a_long_curve_keeps_its_ends() -> None:
    curve = Curve()
    for step in range(10_001):
        curve.add(step, float(step), 100)
    steps, values = curve.points()
    assert steps == values
    assert (steps[0], steps[-1]) == (0, 10_000)
    assert 50 <= len(steps) <= 101
    assert steps[:-1] == list(range(0, steps[-2] + 1, 128))
