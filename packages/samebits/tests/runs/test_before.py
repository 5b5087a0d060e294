"""The seconds of the processes that a run had before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samebits.runs import elapsed
from samebits.runs.directory import write_json


@pytest.mark.parametrize(
    ("known", "logged", "expected"),
    [
        ({"status": "created"}, None, 0.0),
        ({"status": "preempted", "seconds": 5.0}, 990.0, 5.0),  # its own are among them
        ({"status": "running", "began": 900.0}, None, 0.0),  # killed before anything was logged
        ({"status": "running", "began": 900.0}, 950.0, 50.0),
        ({"status": "running", "began": 900.0, "seconds": 5.0}, 950.0, 55.0),
        ({"status": "running", "began": 900.0}, 890.0, 0.0),  # by an earlier process
        ({"status": "failed", "began": 900.0, "time": "1970-01-01T00:16:10+0000"}, 950.0, 70.0),
        ({"status": "failed", "began": 1000.0, "time": "1970-01-01T00:17:40+0000"}, 1010.0, 0.0),  # of this command
    ],
)
def test_what_came_before(tmp_path: Path, known: dict[str, Any], logged: float | None, expected: float) -> None:
    write_json(tmp_path / "status.json", known)
    if logged is not None:
        (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": logged}) + "\n")
    assert elapsed.before(tmp_path, since=1000.0) == expected


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": n, "time": float(n)}) + "\n" for n in range(1000)) + '{"step": 10, "t')
    monkeypatch.setattr(elapsed, "END", 200)
    assert elapsed.last_logged(log) == 999.0
    log.write_text('{"time": 1.0}\n' + " " * 300)
    assert elapsed.last_logged(log) == 0.0
