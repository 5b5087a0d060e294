"""Seconds that a run has taken so far, in all its processes, stopped, killed and failed ones included."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from samebits.files import read_file
from samebits.status import METRICS, read_status, write_status

SAME_S = 0.05  # `began` of one command is computed to within this; two commands start further apart


def record_start(run_dir: Path, began: float) -> None:
    """Write status running, with the seconds of earlier commands. began: time.monotonic() at this command's start."""
    since = time.time() - (time.monotonic() - began)
    write_status(run_dir, "running", seconds=round(before(run_dir, since), 2), began=since)


def before(run_dir: Path, since: float) -> float:
    """Returns the seconds of earlier commands; a killed one counts until its last log line or status.

    since: time.time() when this command began; a restart within one command belongs to it.
    """
    status = read_status(run_dir)
    spent, began = float(status.get("seconds", 0.0)), status.get("began")
    if began is None or abs(began - since) < SAME_S:
        return spent
    last = last_logged(run_dir / METRICS)
    if status.get("status") != "running":  # its end was recorded when it happened
        with suppress(ValueError):
            last = max(last, datetime.strptime(status.get("time", ""), "%Y-%m-%dT%H:%M:%S%z").timestamp())
    return spent + max(0.0, last - began)


def last_logged(path: Path) -> float:
    """Returns time.time() of the last line of a metrics.jsonl; 0 if there is none."""
    for line in reversed(read_file(path).splitlines() if path.exists() else []):
        try:
            return float(json.loads(line)["time"])
        except (ValueError, KeyError, TypeError):  # the half line of a killed process
            continue
    return 0.0
