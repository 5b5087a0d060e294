"""How long a run has taken so far, over all its processes: those that were stopped, killed or failed included."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

from engine.runs import directory
from engine.runs.logger import METRICS

SAME_S = 0.05  # two readings of the clock for one beginning differ by less, two commands begin further apart


def begin(run_dir: Path, began: float) -> None:
    """Mark the run as running since `began` (time.monotonic(), of its command), with what came before in `seconds`."""
    since = time.time() - (time.monotonic() - began)
    directory.write_status(run_dir, "running", seconds=round(before(run_dir, since), 2), began=since)


def before(run_dir: Path, since: float) -> float:
    """Seconds of the processes of earlier commands; one that was killed counts to the last thing that is known of it.

    since: time.time() when this command began; a restart within one command is part of it.
    """
    status = directory.read_status(run_dir)
    spent, began = float(status.get("seconds", 0.0)), status.get("began")
    if began is None or abs(began - since) < SAME_S:
        return spent
    last = last_logged(run_dir / METRICS)
    if status.get("status") != "running":  # how it failed was recorded at once
        last = max(last, datetime.strptime(status["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp())
    return spent + max(0.0, last - began)


def last_logged(path: Path) -> float:
    """time.time() of the last line of a metrics.jsonl; 0 where there is none."""
    for line in reversed(path.read_bytes().splitlines() if path.exists() else []):
        try:
            return float(json.loads(line)["time"])
        except (ValueError, KeyError, TypeError):  # the half line of a killed process
            continue
    return 0.0
