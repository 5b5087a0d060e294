"""Record the first failure of a run, and complete its error message."""

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
    users_traceback,
)
from samebits.files import as_json, no_links, read_json
from samebits.locks import write_once
from samebits.status.files import end_status, newest_checkpoint, read_status, shown, step_of

FAILURE = "failure.json"
FAILURES = "failures.jsonl"  # failures before restarts


def record_failure(directory: Path, rank: int, error: BaseException, first: bool = False, stack: str = "") -> bool:
    """Write failure.json unless another rank has written it, because later failures usually follow from the first.

    Return True if this was the first. If the disk is full, the record may be missing and the status may be shortened.
    first: replace the record, because this failure is known to be earlier. stack: for an error without a traceback.
    """
    if first:
        (directory / FAILURE).unlink(missing_ok=True)
    text, short, cause = stack, error.short if isinstance(error, DataFailed) else "", one_line(error)
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    kind = ConfigError if isinstance(error, ConfigError) and not isinstance(error, Cancelled) else type(error)
    if not isinstance(error, (ConfigError, RunFailed, DataFailed)) and (line := in_users_code(error, shown)):
        cause, short = line, users_traceback(error)
    record = {"rank": rank, "type": kind.__name__, "message": str(error), "cause": cause, "traceback": text}
    record["short"] = short
    try:
        if not write_once(directory / FAILURE, as_json(record, indent=2)):
            return False
    except OSError:  # full disk or removed directory: the error itself is still raised
        if not first and read_status(directory).get("status") == "failed":
            return False
    end_status(directory, "failed", error=f"{record['type']}: {record['message']}", traceback=text, rank=rank)
    return True


def read_failure(directory: Path) -> dict[str, Any] | None:
    """Return the record of the failure; None if there is none, or it is damaged or cannot be read."""
    with suppress(CorruptFileError, OSError):
        return read_json(directory / FAILURE) or None
    return None


def forget_failure(directory: Path) -> None:
    """Delete the record of a failure before a restart or resume."""
    (directory / FAILURE).unlink(missing_ok=True)


def keep_failure(directory: Path, attempt: int) -> None:
    """Append the record of the failure to failures.jsonl and delete it, before a restart. attempt: recorded as well."""
    with open(directory / FAILURES, "a", opener=no_links) as file:
        file.write(json.dumps({"attempt": attempt, "time": time.time(), **(read_failure(directory) or {})}) + "\n")
    forget_failure(directory)


def explained_error(directory: Path, error: Exception) -> Exception:
    """Return a one-line RunFailed if the run directory is missing, or if `error` is an OSError for a file in it,
    otherwise the error itself."""
    if isinstance(error, (OSError, RunFailed)) and not os.path.exists(directory):  # no error of a lost mount
        return RunFailed(f"{shown(directory)} is missing: it was removed, renamed or unmounted during the run")
    if not isinstance(error, OSError) or not error.filename:
        return error
    file = Path(os.fsdecode(error.filename))
    if not file.is_relative_to(directory):
        return error
    return RunFailed(f"{shown(file)}: {error.strerror}; fix this, then resume with: resume={shown(directory)}")


def resume_hint(directory: Path) -> str:
    """Return the end of a failure's message: how to resume, or the run directory if it has no checkpoint."""
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        return f" ({shown(directory)})"
    return f"; resume from step {step_of(Path(checkpoint)):,} with: resume={shown(directory)}"
