"""The seconds of a run: of all its processes, however they ended."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from samebits.runs import spent
from samebits.runs.directory import write_json
from samebits.testing import compose, result, start_run, status

SHORT = (*QUICK, "trainer.max_steps=4", "trainer.log_every=2")


def resume_run(run: Path) -> dict[str, Any]:
    from lab.program import start

    start(compose(*SHORT), run, list(SHORT), own_process=False)
    return result(run)


@pytest.mark.slow
def test_the_time_of_a_killed_process_counts(tmp_path: Path) -> None:
    """A finished run is set back to one whose second process was killed a minute after it began."""
    run = start_run(tmp_path / "run", *SHORT)
    first = result(run)["seconds"]
    assert first > 0
    assert status(run)["seconds"] == first
    assert "began" not in status(run)
    now = time.time()
    write_json(run / "status.json", {**status(run), "status": "running", "began": now - 100})
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 4, "time": now - 40}) + "\n{half a li")
    (run / "result.json").unlink()
    both = resume_run(run)["seconds"]
    assert first + 60 < both < first + 100
    write_json(run / "status.json", {**status(run), "status": "running"})  # and nothing is counted twice
    (run / "result.json").unlink()
    assert both < resume_run(run)["seconds"] < both + 60


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
    assert spent.before(tmp_path, since=1000.0) == expected
