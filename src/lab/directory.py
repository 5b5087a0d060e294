"""A run is a directory: claimed by one process at a time, filled with all it starts from. Imports no torch."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lab.errors import Claimed, ConfigError
from lab.locks import Busy, Lock, is_locked, write_once
from lab.saved import CONFIG, OVERRIDES, check_links, read_overrides

ENVIRONMENT, DIFF = "environment.json", "uncommitted.diff"
STATUS, RESULT, FAILURE = "status.json", "result.json", "failure.json"
METRICS, LOCK = "metrics.jsonl", ".lock"
FAILURES, STUCK = "failures.jsonl", "stuck"  # attempts that failed and were restarted; where hung ranks stood
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "h5py", "wandb")


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the directory for this run alone; the kernel gives it free whatever happens to the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_links(directory)
        lock = Lock(directory / LOCK)
    except Busy as busy:
        raise Claimed(f"hydra.run.dir={directory}: another process is running there; wait or stop it{busy}") from None
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={directory}: nothing can be written there: {error.strerror}") from None
    with lock:
        yield


def is_claimed(directory: Path) -> bool:
    """Whether a process runs there now."""
    return is_locked(directory / LOCK)


def holds_run(directory: Path) -> bool:
    return (directory / CONFIG).exists()


class Surroundings(NamedTuple):
    """What a run starts from beside its config."""

    environment: dict[str, Any]
    diff: str


def surroundings() -> Surroundings:
    return Surroundings(environment(), _git("diff", "HEAD"))


def fill(
    directory: Path,
    cfg: DictConfig,
    overrides: list[str],
    status: str = "created",
    known: Surroundings | None = None,
    **facts: Any,
) -> None:
    """Write what a new run starts from, config.yaml last: a directory with a config is a whole one.

    known: for many runs of one moment. facts: more for status.json.
    """
    known = known or surroundings()
    write_json(directory / ENVIRONMENT, known.environment)
    if known.diff:
        replace_text(directory / DIFF, known.diff)
    replace_text(directory / OVERRIDES, OmegaConf.to_yaml(overrides))
    write_status(directory, status, wandb_id=new_wandb_id(), **facts)
    write_config(directory, cfg)


def new_wandb_id() -> str:
    """What the agent of a W&B sweep has given to this run; else one of our own."""
    return (os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID")) or secrets.token_hex(4)


def reopen(directory: Path, cfg: DictConfig, overrides: list[str]) -> dict[str, str]:
    """A run goes on, perhaps with changed values -> its files so far, for `undo`."""
    forget_failure(directory)
    before = {name: (directory / name).read_text() for name in (CONFIG, OVERRIDES, STATUS)}
    known = read_overrides(directory)
    by_key = {override.partition("=")[0]: override for override in known}
    for override in overrides:
        key = override.partition("=")[0]
        if key != "resume" and not key.startswith("hydra."):
            by_key[key] = override
    replace_text(directory / OVERRIDES, OmegaConf.to_yaml(list(by_key.values())))
    write_config(directory, cfg)
    return before


def undo(directory: Path, before: dict[str, str]) -> None:
    """A changed value that does not fit must not stay: the run is what it was."""
    forget_failure(directory)
    for name, text in before.items():
        replace_text(directory / name, text)


def has_trained(directory: Path) -> bool:
    """Whether anything is there that a mistake in the config, found so late, must not take along."""
    metrics = directory / METRICS
    return (metrics.exists() and metrics.stat().st_size > 0) or any((directory / "checkpoints").glob("*"))


def empty(directory: Path, keep: Set[str]) -> None:
    """Remove what a run has made in a directory that held `keep` before; a directory that held nothing goes too."""
    for path in directory.iterdir():
        if path.name in keep and path.name != LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def write_config(directory: Path, cfg: DictConfig) -> None:
    replace_text(directory / CONFIG, OmegaConf.to_yaml(cfg))


def environment() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a vendored or path-installed package has no metadata
            versions[name] = "unknown"
    return {
        "command": sys.argv,
        "cwd": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "git_commit": _git("rev-parse", "HEAD").strip() or None,
        "git_dirty": bool(_git("status", "--porcelain").strip()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def _git(*arguments: str) -> str:
    """The output of git in the project, empty where there is no git or no repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def replace_text(path: Path, text: str) -> None:
    """All or nothing: `path` holds what it held, or the whole text."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")  # hosts may share it
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", opener=no_links) as file:
        file.write(text)
    temporary.replace(path)


def no_links(path: str, flags: int) -> int:
    """An opener for open(): a symbolic link at the file's name is not followed (OSError)."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_json(path: Path, value: Any) -> None:
    replace_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def write_status(directory: Path, status: str, **more: Any) -> None:
    """status: queued (a sweep's, nothing has run), created, running, finished, failed, pruned, interrupted (Ctrl-C) or
    preempted (another signal, or its time was up; to be run again). The id of the W&B run, the place in a sweep and the
    seconds that earlier processes took stay for good; `began`, of a process, until its own seconds are among them."""
    known = read_json(directory / STATUS)
    own = () if "seconds" in more else ("began",)
    kept = {key: known[key] for key in ("wandb_id", "sweep", "seconds", *own) if key in known}
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_json(directory / STATUS, {"status": status, "time": now, **kept, **more})


def record_failure(directory: Path, rank: int, error: BaseException, first: bool = False, stack: str = "") -> bool:
    """Keep the first failure of a run: what the other ranks raise afterwards is only its echo. -> whether it was.

    first: this one is known to have come before whatever is on record. stack: for an error that has no traceback.
    """
    if first:
        (directory / FAILURE).unlink(missing_ok=True)
    text = stack
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    record = {"rank": rank, "type": type(error).__name__, "message": str(error), "traceback": text}
    try:
        if not write_once(directory / FAILURE, json.dumps(record, indent=2)):
            return False
    except FileNotFoundError:  # another rank found the same mistake, and the directory of the new run has gone
        return False
    write_status(directory, "failed", error=f"{record['type']}: {record['message']}", traceback=text, rank=rank)
    return True


def failure(directory: Path) -> dict[str, Any] | None:
    return read_json(directory / FAILURE) or None


def shown(path: Path) -> str:
    """Relative to where the user stands, when it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def forget_failure(directory: Path) -> None:
    """Before the run is started again."""
    (directory / FAILURE).unlink(missing_ok=True)
    shutil.rmtree(directory / STUCK, ignore_errors=True)


def keep_failure(directory: Path, attempt: int) -> None:
    """Before a restart: put the record into failures.jsonl."""
    with open(directory / FAILURES, "a", opener=no_links) as file:
        file.write(json.dumps({"attempt": attempt, "time": time.time(), **(failure(directory) or {})}) + "\n")
    forget_failure(directory)
