"""The files of a run directory that record its progress and scores."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.config import agents_run, id_in
from samebits.errors import CorruptFileError
from samebits.files import overwrite_json, read_json, records, write_json

log = logging.getLogger("samebits")

CLASSES = "classes.json"  # {field: names of its classes}, if the data set defines them
SHARED_WEIGHTS = "frozen.pt"  # next to the checkpoints: weights that no step changes (checkpoints.shared_weights)
STATUS, RESULT, METRICS = "status.json", "result.json", "metrics.jsonl"
CHECKPOINTS = "checkpoints"
CHECKPOINT = re.compile(r"(last|best)_(\d+)(\.pt|\.dcp)")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def shown(path: Path) -> str:
    """Return the path relative to the working directory if it is inside it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the working directory was deleted
        return str(path)


def read_status(directory: Path) -> dict[str, Any]:
    """Return the content of status.json; {} with a warning if it is damaged, because a run does not depend on it."""
    try:
        return read_json(directory / STATUS)
    except CorruptFileError as error:
        log.warning("%s; it is ignored", error)
        return {}


def write_status(directory: Path, status: str, **more: Any) -> None:
    """Write status.json. more: further values.

    status: queued (a sweep's job that has not run), created, running, finished, failed, pruned, interrupted (Ctrl-C) or
    preempted (another signal, or max_time; it can be resumed). wandb_id, sweep and seconds (of earlier processes) are
    kept; began (start of the running process) is kept until `seconds` includes that process."""
    known = {"wandb_id": new_wandb_id()} | read_status(directory)
    own = () if "seconds" in more else ("began",)
    kept: dict[str, Any] = {key: known[key] for key in ("wandb_id", "sweep", "seconds", *own) if key in known}
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    value = {"status": status, "time": now, **kept, **more}
    try:
        write_json(directory / STATUS, value)
    except OSError as error:
        if error.errno in NO_ROOM:
            overwrite_json(directory / STATUS, value)
        raise


def end_status(directory: Path, status: str, **more: Any) -> None:
    """Call write_status without raising OSError, because a full disk must not hide the error that ended the run."""
    with suppress(OSError):
        write_status(directory, status, **more)


def new_wandb_id() -> str:
    """Return the id set by W&B's sweep agent or launch agent, otherwise a random one. Raise ConfigError if it is not
    valid: W&B would refuse it when the run has ended."""
    by_agent = agents_run() is not None or os.environ.get("WANDB_LAUNCH")
    return (by_agent and id_in("WANDB_RUN_ID")) or secrets.token_hex(4)


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl: [{"step": 50, "train/loss": 0.3, ...}, ...]; [] if nothing was logged."""
    return [record for _, record in records(directory / METRICS)]


def write_class_names(directory: Path, names: dict[str, list[str]]) -> None:
    """Write the names of classes. names: {field: names}."""
    write_json(directory / CLASSES, names)


def class_names(directory: Path, field: str = "y") -> list[str] | None:
    """Return the names of a field's classes; None if the data set does not define them."""
    names: list[str] | None = read_json(directory / CLASSES).get(field)
    return names


def checkpoint_files(checkpoints: Path) -> list[Path]:
    """Return all checkpoints in a folder, oldest first. Files with other names are ignored."""
    found = [path for path in checkpoints.glob("*_*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=lambda path: (step_of(path), path.name))


def newest_checkpoint(directory: Path) -> str | None:
    """Return the name of the run's newest checkpoint; None if it has none."""
    return next((path.name for path in reversed(checkpoint_files(directory / CHECKPOINTS))), None)


def step_of(checkpoint: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(checkpoint.stem.rsplit("_", 1)[1])
