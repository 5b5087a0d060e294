"""Find out if a run is still running, on this host or another one, without disturbing it."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path

from samebits.code import ENVIRONMENT
from samebits.files import read_json
from samebits.runs.directory import is_claimed
from samebits.status import METRICS, STATUS

SILENT_S = 600.0  # a run of another host that has written nothing for so many seconds is presumed dead
UNDER_WAY = ("created", "running")
WRITTEN = (STATUS, METRICS, "train.log")


def is_running(directory: Path) -> bool:
    """Return True if a process holds the run, or if it runs on another host and has written within SILENT_S seconds.

    Locks of another host are not visible on each shared file system."""
    if is_claimed(directory):
        return True
    if read_json(directory / STATUS).get("status") not in UNDER_WAY:
        return False
    host = read_json(directory / ENVIRONMENT).get("host", platform.node())
    return host != platform.node() and time.time() - last_written(directory) < SILENT_S


def last_written(directory: Path) -> float:
    """Return time.time() of the last write to the run's status, metrics or log; 0 without these files."""
    times = [0.0]
    for name in WRITTEN:
        with suppress(OSError):
            times.append(os.lstat(directory / name).st_mtime)
    return max(times)


def current_status(directory: Path) -> str:
    """Return the status of status.json; killed if it is `running` or `created` but the run is not running."""
    status = str(read_json(directory / STATUS).get("status", "created"))
    return "killed" if status in UNDER_WAY and not is_running(directory) else status
