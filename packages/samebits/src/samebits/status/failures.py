"""The record of a run's first failure, and what its last line says."""

from __future__ import annotations

import json
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.errors import (
    Cancelled,
    ConfigError,
    CorruptFileError,
    DataFailed,
    RunFailed,
    in_users_code,
    one_line,
    users_frames,
)
from samebits.files import as_json, no_links, read_json
from samebits.locks import write_once
from samebits.status.files import end_status, newest_checkpoint, shown, step_of

FAILURE = "failure.json"
FAILURES = "failures.jsonl"  # those before restarts
SHORT = 3  # innermost frames of the user's code that the screen shows


def record_failure(directory: Path, rank: int, error: BaseException, first: bool = False, stack: str = "") -> bool:
    """Write failure.json unless another rank has: later failures are mostly consequences of the first. Returns whether
    this was the first. On a full disk the record may be missing and the status shortened.

    first: replace the record, as this failure is known to be earlier. stack: for an error without a traceback.
    """
    if first:
        (directory / FAILURE).unlink(missing_ok=True)
    text, short, cause = stack, "", one_line(error)
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    kind = ConfigError if isinstance(error, ConfigError) and not isinstance(error, Cancelled) else type(error)
    if not isinstance(error, (ConfigError, RunFailed, DataFailed)) and (line := in_users_code(error, shown)):
        cause, frames = line, users_frames(traceback.extract_tb(error.__traceback__))
        short = "".join([*traceback.format_list(frames[-SHORT:]), *traceback.format_exception_only(error)])
    record = {"rank": rank, "type": kind.__name__, "message": str(error), "cause": cause, "traceback": text}
    record["short"] = short
    try:
        if not write_once(directory / FAILURE, as_json(record, indent=2)):
            return False
    except OSError:  # full disk or removed directory: the error itself is still raised
        pass
    end_status(directory, "failed", error=f"{record['type']}: {record['message']}", traceback=text, rank=rank)
    return True


def read_failure(directory: Path) -> dict[str, Any] | None:
    with suppress(CorruptFileError):
        return read_json(directory / FAILURE) or None
    return None


def forget_failure(directory: Path) -> None:
    """Delete the record of a failure before a restart or resume."""
    (directory / FAILURE).unlink(missing_ok=True)


def keep_failure(directory: Path, attempt: int) -> None:
    """Before a restart: append the failure's record to failures.jsonl."""
    with open(directory / FAILURES, "a", opener=no_links) as file:
        file.write(json.dumps({"attempt": attempt, "time": time.time(), **(read_failure(directory) or {})}) + "\n")
    forget_failure(directory)


def explained_error(directory: Path, error: Exception) -> Exception:
    """Returns a one-line RunFailed if `error` is an OSError for a file in the run directory; else the error itself."""
    if not isinstance(error, OSError) or not error.filename:
        return error
    file = Path(os.fsdecode(error.filename))
    if not file.is_relative_to(directory):
        return error
    if not directory.exists():
        return RunFailed(f"{shown(directory)} has gone: it was removed or renamed while the run was writing there")
    return RunFailed(f"{shown(file)}: {error.strerror}; once that is mended, go on with: resume={shown(directory)}")


def resume_hint(directory: Path) -> str:
    """What follows a failure's line: how to go on from the newest checkpoint, or where the run is if it has none."""
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        return f" ({shown(directory)})"
    return f"; go on from step {step_of(Path(checkpoint)):,} with: resume={shown(directory)}"
