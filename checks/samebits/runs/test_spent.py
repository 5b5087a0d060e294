"""The seconds of a run: of all its processes, however they ended."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

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
    (run / "status.json").write_text(json.dumps({**status(run), "status": "running", "began": now - 100}))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 4, "time": now - 40}) + "\n{half a li")
    (run / "result.json").unlink()
    both = resume_run(run)["seconds"]
    assert first + 60 < both < first + 100
    (run / "status.json").write_text(json.dumps({**status(run), "status": "running"}))  # and nothing is counted twice
    (run / "result.json").unlink()
    assert both < resume_run(run)["seconds"] < both + 60
