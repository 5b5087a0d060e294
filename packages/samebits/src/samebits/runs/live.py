"""Find out if a run is still running or a sweep being run, on this host or another one, without disturbing it."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samebits.code import ENVIRONMENT
from samebits.files import read_json
from samebits.locks import Lock, is_locked, is_marked_elsewhere, marker_of
from samebits.runs.directory import LOCK, is_claimed
from samebits.status import METRICS, STATUS

SILENT_S = 600.0  # a run of another host that has written nothing for so many seconds is presumed dead
UNDER_WAY = ("created", "running")
DEAD_S = 86400.0  # the file of a dead command is removed if it has been silent for so many seconds
LAUNCHING = ".launching."  # file that a command holds in a sweep's directory: this, its host, its process and the time
WRITTEN = (STATUS, METRICS, "train.log", marker_of(Path(LOCK)).name)


def is_running(directory: Path) -> bool:
    """Return True if a process holds the run, or if it runs on another host and has written within SILENT_S seconds.

    Locks of another host are not visible on each shared file system, and a marker of another host outlives its
    process."""
    if is_claimed(directory):
        return not is_marked_elsewhere(directory / LOCK) or is_recent(directory)
    if read_json(directory / STATUS).get("status") not in UNDER_WAY:
        return False
    host = read_json(directory / ENVIRONMENT).get("host", platform.node())
    return host != platform.node() and is_recent(directory)


def is_recent(directory: Path) -> bool:
    """Return True if the run has written within SILENT_S seconds."""
    return time.time() - last_written(directory) < SILENT_S


def last_written(directory: Path) -> float:
    """Return time.time() of the last write to the run's status, metrics, log or marker; 0 without these files."""
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
    """Show other processes that this one starts the queued jobs of the sweep in this directory. Remove the files of
    dead processes that have shown this."""
    remove_dead(sweep)
    # with the time, because two containers may have the same host name and process id, and a dead process may have
    # had this id: waiting for their locks could take forever
    path = sweep / f"{LAUNCHING}{platform.node()}.{os.getpid()}-{time.time_ns()}"
    with Lock(path, wait_s=math.inf):  # `is_locked` of another process holds it for a moment
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_launching(sweep: Path) -> bool:
    """Return True if a process of this host starts the queued jobs of this sweep, or if one of another host has begun
    to, and it or a run of the sweep has written within SILENT_S seconds. A lock of another host says nothing: on some
    file systems it is not visible, on others it outlives its process."""
    for path in sweep.glob(f"{LAUNCHING}*[0-9]"):
        if is_of_this_host(path):
            if is_locked(path):
                return True
        elif time.time() - last_sign(path) < SILENT_S:
            return True
    return False


def remove_dead(sweep: Path) -> None:
    """Remove the files of `launching` whose processes are dead or on another host, after DEAD_S seconds in which
    neither the file nor a run of the sweep was written."""
    for path in sweep.glob(f"{LAUNCHING}*[0-9]"):
        with suppress(PermissionError):  # of another user: a file that is left does no harm
            # also on this host, because a process that has just made its file may not have locked it yet
            if time.time() - last_sign(path) > DEAD_S and not (is_of_this_host(path) and is_locked(path)):
                for file in (path, marker_of(path)):
                    file.unlink(missing_ok=True)


def is_of_this_host(path: Path) -> bool:
    """Return True if a process of this host made this file of `launching`."""
    return path.name.removeprefix(LAUNCHING).rpartition(".")[0] == platform.node()


def last_sign(path: Path) -> float:
    """Return time.time() of the last write to this file of `launching` or to a run of its sweep; 0 without the file."""
    try:
        begun = path.lstat().st_mtime
    except FileNotFoundError:  # the process has ended meanwhile
        return 0.0
    return max(begun, *map(last_written, path.parent.iterdir()))
