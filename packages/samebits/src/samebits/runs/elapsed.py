"""Count the seconds of a run over all its processes, including stopped, killed and failed ones."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from samebits.files import read_end
from samebits.status import METRICS, read_status, write_status

SAME_S = 0.05  # tolerance of `began` within one command; two commands start further apart
END = 1 << 20  # bytes of metrics.jsonl to read for its last complete line


def record_start(run_dir: Path, began: float) -> None:
    """Write the status running, with the seconds of earlier commands. began: time.monotonic() at the start."""
    since = time.time() - (time.monotonic() - began)
    write_status(run_dir, "running", seconds=round(before(run_dir, since), 2), began=since)


def before(run_dir: Path, since: float) -> float:
    """Return the seconds of earlier commands. A killed one counts until its last log line or status.

    since: time.time() when this command started; restarts within one command belong to it.
    """
    status = read_status(run_dir)
    spent, began = float(status.get("seconds", 0.0)), status.get("began")
    if began is None or abs(began - since) < SAME_S:
        return spent
    last = last_logged(run_dir / METRICS)
    if status.get("status") != "running":  # the status has the time of its end
        with suppress(ValueError):
            last = max(last, datetime.strptime(status.get("time", ""), "%Y-%m-%dT%H:%M:%S%z").timestamp())
    return spent + max(0.0, last - began)


def seconds_until_last_record(run_dir: Path) -> float:
    """Return the seconds of all commands of a run that has not finished; the last one counts until its last record."""
    return before(run_dir, math.inf)


def last_logged(path: Path) -> float:
    """Return time.time() of the last line of a metrics.jsonl; 0 if there is no line."""
    for line in reversed(read_end(path, END).splitlines() if path.exists() else []):
        try:
            return float(json.loads(line)["time"])
        except (ValueError, KeyError, TypeError):  # the incomplete line of a killed process
            continue
    return 0.0
