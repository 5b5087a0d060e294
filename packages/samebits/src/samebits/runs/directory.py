"""The run directory: locked by one process at a time, holding all that the run starts from. Imports no torch."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import shutil
import time
import traceback
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from samebits.code import DIFF, ENVIRONMENT, Surroundings, code_here, codes_of, surroundings, use_code
from samebits.config import agents_run
from samebits.credentials import redacted
from samebits.errors import (
    Cancelled,
    Claimed,
    ConfigError,
    Damaged,
    DataFailed,
    RunFailed,
    in_users_code,
    one_line,
    users_frames,
)
from samebits.files import (
    as_json,
    no_links,
    overwrite_json,
    read_file,
    read_json,
    records,
    remove_leftovers,
    replace_text,
    write_json,
)
from samebits.locks import Busy, Lock, is_locked, write_once
from samebits.project import Project
from samebits.runs.data_files import files_of, fingerprints, is_same
from samebits.saved import CONFIG, OVERRIDES, enter, flat, load_flat, portable, read_overrides
from samebits.schema import plain

log = logging.getLogger("samebits")

CLASSES = "classes.json"  # {field: names of its classes}, where the data set names them
SHARED_WEIGHTS = (
    "frozen.pt"  # beside the checkpoints: weights that no step changes, samebits.checkpoints.shared_weights
)
STATUS, RESULT, FAILURE = "status.json", "result.json", "failure.json"
REMOTE = "remote.json"
METRICS, CHECKPOINTS, LOCK = "metrics.jsonl", "checkpoints", ".lock"
CHECKPOINT = re.compile(r"(last|best)_(\d+)(\.pt|\.dcp)")
BEFORE = ".before"  # copies of the files in UNDONE from before a resume, until its first step
UNDONE = (CONFIG, OVERRIDES, STATUS, FAILURE, ENVIRONMENT, DIFF)
FAILURES = "failures.jsonl"  # those before restarts
NOT_COMPUTED = ("logger", "profiler", "resume", "sweep")  # groups that do not change what is computed
MOST_DUMPS = 1000  # parts of configs that are kept as yaml
_dumps: dict[str, str] = {}
SHORT = 3  # innermost frames of the user's code that the screen shows
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the directory's lock in this block; the kernel releases it if the process dies. Raises Claimed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        enter(directory)
        lock = Lock(directory / LOCK)
    except Busy as busy:
        raise Claimed(f"hydra.run.dir={directory}: another process is running there; wait or stop it{busy}") from None
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={directory}: nothing can be written there: {error.strerror}") from None
    with lock:
        remove_leftovers(directory)
        yield


def is_claimed(directory: Path) -> bool:
    """Whether a process holds the directory's lock."""
    return is_locked(directory / LOCK)


def holds_run(directory: Path) -> bool:
    return (directory / CONFIG).exists()


def check_free(directory: Path) -> None:
    """ConfigError if the directory has files of another run without its config: a new run would mix with them."""
    foreign = [name for name in (METRICS, RESULT) if (directory / name).exists()]
    if any((directory / CHECKPOINTS).glob("*")):
        foreign.append(f"{CHECKPOINTS}/")
    if foreign:
        raise ConfigError(
            f"hydra.run.dir={directory}: it has no {CONFIG} but {', '.join(foreign)} of another run; move them away or "
            "choose another directory"
        )


def fill_directory(
    project: Project,
    directory: Path,
    cfg: DictConfig | dict[str, Any],
    overrides: list[str],
    status: str = "created",
    known: Surroundings | None = None,
    **facts: Any,
) -> None:
    """Write the files of a new run, config.yaml last: a directory with a config is complete.

    known: surroundings(project.root), computed once for many runs. facts: more entries for status.json.
    """
    known = known or surroundings(project.root)
    write_json(directory / ENVIRONMENT, known.environment)
    if known.diff:
        replace_text(directory / DIFF, os.fsencode(known.diff))
    replace_text(directory / OVERRIDES, to_yaml(redacted(overrides)))
    write_status(directory, status, wandb_id=new_wandb_id(), **facts)
    write_config(project, directory, cfg)


def new_wandb_id() -> str:
    """Returns the id that W&B's sweep agent or its launch agent has set; else a random one."""
    ids = agents_run()
    launched = os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_LAUNCH") else None
    return ids[1] if ids else launched or secrets.token_hex(4)


def reopen_directory(project: Project, directory: Path, cfg: DictConfig, overrides: list[str]) -> None:
    """Prepare a resume, perhaps with changed values or code. The old files are kept for `undo_resume`, until
    `commit_resume`."""
    if not (directory / BEFORE).exists():  # else a resume was killed before its first step
        files = {name: read_file(directory / name) for name in UNDONE if (directory / name).exists()}
        temporary = directory / f"{BEFORE}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        temporary.replace(directory / BEFORE)
    try:
        _reopen(project, directory, cfg, overrides)
    except Exception:  # a damaged environment.json, a full disk
        undo_resume(directory)
        raise


def _reopen(project: Project, directory: Path, cfg: DictConfig, overrides: list[str]) -> None:
    forget_failure(directory)
    known = read_overrides(project, directory)
    by_key = {override.partition("=")[0]: override for override in known}
    for override in overrides:
        key = override.partition("=")[0]
        if key != "resume" and not key.startswith("hydra."):
            by_key[key] = override
    replace_text(directory / OVERRIDES, OmegaConf.to_yaml(redacted(list(by_key.values()))))
    keep_changes(project, directory, cfg)
    write_config(project, directory, cfg)


def keep_changes(project: Project, directory: Path, cfg: DictConfig) -> None:
    """Record in environment.json what a resume changes: {"after": step, "was": {key: value before}, "code": Code}."""
    step = max(map(step_of, checkpoint_files(directory / CHECKPOINTS)), default=0)
    change: dict[str, Any] = {}
    before, now = load_flat(project, directory), flat(portable(project.root, plain(cfg, resolve=False)))
    was = {key: value for key, value in before.items() if key in now and now[key] != value}
    was = {key: value for key, value in was.items() if key.split(".")[0] not in NOT_COMPUTED}
    known_files = files_of(directory) if was else {}
    named = {key: plain(OmegaConf.select(cfg, key)) for key in was if key in known_files}
    now_files = fingerprints(project.root, named)
    if was := {k: v for k, v in was.items() if k not in now_files or not is_same(now_files[k], known_files[k])}:
        change["was"] = was
    if read_status(directory).get("status") != "queued":  # the sweep has seen to those
        known = surroundings(project.root)
        if (here := code_here(project.root, known)) != codes_of(directory)[-1]:
            change |= {"code": list(here)} if step else {}
            if not step:
                use_code(directory, known)
    if step and change:
        recorded = read_json(directory / ENVIRONMENT)
        changes = [*recorded.get("changes", []), {"after": step, **change}]
        write_json(directory / ENVIRONMENT, recorded | {"changes": changes})


def keep_versions(directory: Path, versions: dict[str, str]) -> None:
    """Record {url: version} of remote files; warn if a resumed run uses another version than it began with."""
    began = read_json(directory / REMOTE)
    for url, version in versions.items():
        if began.get(url, version) != version:
            log.warning("%s is not the file that this run began with: it goes on with other data", url)
    if versions:
        write_json(directory / REMOTE, versions | began)


def keep_class_names(directory: Path, names: dict[str, list[str]]) -> None:
    """Record {field: names of its classes}."""
    write_json(directory / CLASSES, names)


def class_names(directory: Path, field: str = "y") -> list[str] | None:
    """Return the names of a field's classes; None where the run's data named none."""
    names: list[str] | None = read_json(directory / CLASSES).get(field)
    return names


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl: [{"step": 50, "train/loss": 0.3, ...}, ...]; [] where nothing was logged."""
    return [record for _, record in records(directory / METRICS)]


def commit_resume(directory: Path) -> None:
    """Make a resume final, after its first step: delete the copies that `undo_resume` would restore."""
    if (directory / BEFORE).exists():
        (directory / BEFORE).rename(directory / f"{BEFORE}.tmp")  # renamed first, so that no undo uses half of it
        shutil.rmtree(directory / f"{BEFORE}.tmp", ignore_errors=True)


def undo_resume(directory: Path, but: Collection[str] = ()) -> None:
    """Restore the files from before a resume that ended before its first step. but: names of files not to restore.

    Only renames, so that it works on a full disk; if interrupted, it can be repeated.
    """
    before = directory / BEFORE
    if not before.is_dir():
        return
    if FAILURE not in but:
        forget_failure(directory)
    for name in UNDONE:
        if name not in but and (before / name).exists():
            (before / name).replace(directory / name)
    shutil.rmtree(before, ignore_errors=True)


def checkpoint_files(checkpoints: Path) -> list[Path]:
    """All checkpoints in a run's folder of them, oldest first; files with other names are not ours."""
    found = [path for path in checkpoints.glob("*_*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=lambda path: (step_of(path), path.name))


def newest_checkpoint(directory: Path) -> str | None:
    return next((path.name for path in reversed(checkpoint_files(directory / CHECKPOINTS))), None)


def onward(directory: Path) -> str:
    """What follows a failure's line: how to go on from the newest checkpoint, or where the run is if it has none."""
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        return f" ({shown(directory)})"
    return f"; go on from step {step_of(Path(checkpoint)):,} with: resume={shown(directory)}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.rsplit("_", 1)[1])


def has_trained(directory: Path) -> bool:
    """Whether there are logged values or checkpoints, so that the directory must not be emptied after a ConfigError."""
    metrics = directory / METRICS
    return (metrics.exists() and metrics.stat().st_size > 0) or any((directory / CHECKPOINTS).glob("*"))


def empty_directory(directory: Path, keep: Set[str]) -> None:
    """Delete a run's files, except `keep`, which were there before it; an empty directory is removed too."""
    for path in directory.iterdir():
        if path.name in keep and path.name != LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def write_config(project: Project, directory: Path, cfg: DictConfig | dict[str, Any]) -> None:
    replace_text(directory / CONFIG, to_yaml(portable(project.root, plain(cfg, resolve=False))))


def to_yaml(values: dict[str, Any] | list[str]) -> str:
    """OmegaConf.to_yaml of each entry by itself: most of these are the same in all jobs of a sweep."""
    entries: list[Any] = [{k: v} for k, v in values.items()] if isinstance(values, dict) else [[v] for v in values]
    return "".join(map(_dumped, entries)) or OmegaConf.to_yaml(values)


def _dumped(entry: Any) -> str:
    key = repr(entry)
    if key not in _dumps:
        if len(_dumps) >= MOST_DUMPS:
            _dumps.clear()
        _dumps[key] = OmegaConf.to_yaml(entry)
    return _dumps[key]


def read_status(directory: Path) -> dict[str, Any]:
    """Returns status.json; {} with a warning if it is damaged, as a run does not depend on it."""
    try:
        return read_json(directory / STATUS)
    except Damaged as error:
        log.warning("%s; going on without it", error)
        return {}


def write_status(directory: Path, status: str, **more: Any) -> None:
    """status: queued (a sweep's job that has not run), created, running, finished, failed, pruned, interrupted (Ctrl-C)
    or preempted (another signal, or max_time; to be resumed). wandb_id, sweep and seconds (of earlier processes) are
    kept; began (the running process's start) until `seconds` includes that process."""
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
    """write_status without OSError: a full disk must not hide the error that ended the run."""
    with suppress(OSError):
        write_status(directory, status, **more)


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
    with suppress(Damaged):
        return read_json(directory / FAILURE) or None
    return None


def shown(path: Path) -> str:
    """Returns the path relative to the working directory if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def forget_failure(directory: Path) -> None:
    """Delete the record of a failure before a restart or resume."""
    (directory / FAILURE).unlink(missing_ok=True)


def keep_failure(directory: Path, attempt: int) -> None:
    """Before a restart: append the failure's record to failures.jsonl."""
    with open(directory / FAILURES, "a", opener=no_links) as file:
        file.write(json.dumps({"attempt": attempt, "time": time.time(), **(read_failure(directory) or {})}) + "\n")
    forget_failure(directory)
