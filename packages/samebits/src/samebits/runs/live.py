"""Find out if a run is still running or a sweep being run, on this host or another one, without disturbing it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samebits.code import ENVIRONMENT
from samebits.files import read_json
from samebits.locks import Lock, is_locked
from samebits.runs.directory import is_claimed
from samebits.status import METRICS, STATUS

SILENT_S = 600.0  # a run of another host that has written nothing for so many seconds is presumed dead
UNDER_WAY = ("created", "running")
LAUNCHING = ".launching."  # file that a command holds in a sweep's directory: this, its host and its process
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


@contextmanager
def launching(sweep: Path) -> Iterator[None]:
    """Show other processes that this one starts the queued jobs of the sweep in this directory."""
    path = sweep / f"{LAUNCHING}{platform.node()}.{os.getpid()}"
    with Lock(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_launching(sweep: Path) -> bool:
    """Return True if a process starts the queued jobs of this sweep, or if one on another host has begun to, and the
    sweep has written within SILENT_S seconds."""
    for path in sweep.glob(f"{LAUNCHING}*[0-9]"):
        if is_locked(path):
            return True
        host = path.name.removeprefix(LAUNCHING).rpartition(".")[0]
        if host != platform.node():
            with suppress(FileNotFoundError):  # it has ended meanwhile
                last = max(path.lstat().st_mtime, *map(last_written, sweep.iterdir()))
                if time.time() - last < SILENT_S:
                    return True
    return False
