"""Create, lock, reopen and clear the directory of a run. Imports no torch."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from samebits.code import DIFF, ENVIRONMENT, Surroundings, code_here, codes_of, surroundings, use_code
from samebits.credentials import redacted
from samebits.errors import ConfigError, DirectoryLockedError, RunFailed
from samebits.files import floats_as_text, read_file, read_json, remove_leftovers, replace_text, write_json
from samebits.locks import PATIENCE_S, Busy, Lock, is_locked
from samebits.project import Project
from samebits.runs.data_files import files_of, fingerprints, is_same
from samebits.saved import CONFIG, OVERRIDES, check_run_dir, flat, load_flat, portable, read_overrides, same_value
from samebits.schema import plain
from samebits.status import (
    CHECKPOINTS,
    FAILURE,
    METRICS,
    RESULT,
    STATUS,
    checkpoint_files,
    forget_failure,
    new_wandb_id,
    read_status,
    step_of,
    write_status,
)

log = logging.getLogger("samebits")

REMOTE = "remote.json"
LOCK = ".lock"
BEFORE = ".before"  # copies of the files UNDONE from before a resume, until its first step
UNDONE = (CONFIG, OVERRIDES, STATUS, FAILURE, ENVIRONMENT, DIFF)
NOT_COMPUTED = ("logger", "profiler", "resume", "sweep")  # groups that do not change what is computed
MOST_DUMPS = 1000  # parts of configs that are cached as yaml
_dumps: dict[str, str] = {}


@contextmanager
def claimed(directory: Path, wait_s: float = PATIENCE_S) -> Iterator[None]:
    """Claim the directory for this process: hold its lock in this block. The kernel releases it if the process dies.

    Raise DirectoryLockedError if another process holds it for more than wait_s seconds, ConfigError if the directory
    cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_run_dir(directory)
        lock = Lock(directory / LOCK, wait_s)
    except Busy as busy:
        raise DirectoryLockedError(
            f"hydra.run.dir={directory}: is in use by another process; wait for it or stop it{busy}"
        ) from None
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={directory}: cannot be written: {error.strerror}") from None
    with lock:
        remove_leftovers(directory)
        yield


def is_claimed(directory: Path) -> bool:
    """Return whether a process holds the lock of the directory."""
    return is_locked(directory / LOCK)


def holds_run(directory: Path) -> bool:
    """Return whether the directory contains a run: whether it has a config.yaml."""
    return (directory / CONFIG).exists()


def check_free(directory: Path) -> None:
    """Raise ConfigError if the directory contains files of another run without its config."""
    foreign = [name for name in (METRICS, RESULT) if (directory / name).exists()]
    if any((directory / CHECKPOINTS).glob("*")):
        foreign.append(f"{CHECKPOINTS}/")
    if foreign:
        raise ConfigError(
            f"hydra.run.dir={directory}: has no {CONFIG}, but contains {', '.join(foreign)} of another run; move them "
            "away or choose another directory"
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


def reopen_directory(project: Project, directory: Path, cfg: DictConfig, overrides: list[str]) -> None:
    """Prepare the directory for a resume, with the new config, overrides and code.

    Copies of the old files are kept for `undo_resume`, until `commit_resume`.
    """
    if not (directory / BEFORE).exists():  # otherwise a resume was killed before its first step
        files = {name: read_file(directory / name) for name in UNDONE if (directory / name).exists()}
        temporary = directory / f"{BEFORE}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            for name, content in files.items():
                (temporary / name).write_bytes(content)
        except OSError as error:  # a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            raise _unchanged(directory, error) from error
        temporary.replace(directory / BEFORE)
    try:
        _reopen(project, directory, cfg, overrides)
    except Exception as error:  # a damaged environment.json, a full disk
        undo_resume(directory)
        if isinstance(error, OSError):
            raise _unchanged(directory, error) from error
        raise


def _unchanged(directory: Path, error: OSError) -> RunFailed:
    return RunFailed(
        f"{directory} cannot be resumed: {error.strerror or error}; nothing was changed (see "
        "docs/troubleshooting.md#disk-full)"
    )


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
    """Record the changes of a resume in environment.json: {"after": step, "was": {key: old value}, "code": Code}."""
    step = max(map(step_of, checkpoint_files(directory / CHECKPOINTS)), default=0)
    change: dict[str, Any] = {}
    before, now = load_flat(project, directory), flat(portable(project.root, plain(cfg, resolve=False)))
    was = {key: value for key, value in before.items() if key in now and not same_value(now[key], value)}
    was = {key: value for key, value in was.items() if key.split(".")[0] not in NOT_COMPUTED}
    known_files = files_of(directory) if was else {}
    named = {key: plain(OmegaConf.select(cfg, key)) for key in was if key in known_files}
    now_files = fingerprints(project.root, named)
    if was := {k: v for k, v in was.items() if k not in now_files or not is_same(now_files[k], known_files[k])}:
        change["was"] = floats_as_text(was)
    if read_status(directory).get("status") != "queued":  # the sweep has already recorded the code of queued jobs
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
    """Record {url: version} of remote files. Warn if a resumed run uses another version than it started with."""
    began = read_json(directory / REMOTE)
    for url, version in versions.items():
        if began.get(url, version) != version:
            log.warning("%s has changed since the start of this run, which resumes with other data", url)
    if versions:
        write_json(directory / REMOTE, versions | began)


def changed_values(project: Project, directory: Path) -> dict[str, tuple[Any, Any]]:
    """Return {key: (value before, value now)} of the keys that a resume has changed, until its first step."""
    was = load_flat(project, directory / BEFORE)
    now = load_flat(project, directory) if was else {}
    return {k: (was.get(k), now.get(k)) for k in {**was, **now} if not same_value(was.get(k), now.get(k))}


def commit_resume(directory: Path) -> None:
    """Make a resume final, after its first step: delete the copies that `undo_resume` would restore."""
    if (directory / BEFORE).exists():
        (directory / BEFORE).rename(directory / f"{BEFORE}.tmp")  # renamed first, so that no undo uses a part of it
        shutil.rmtree(directory / f"{BEFORE}.tmp", ignore_errors=True)


def undo_resume(directory: Path, but: Collection[str] = ()) -> None:
    """Restore the files from before a resume that ended before its first step. but: names of files to keep as they are.

    It only renames files, so it works on a full disk; if interrupted, it can be repeated.
    """
    before = directory / BEFORE
    if not os.path.isdir(before):  # no error of a lost mount
        return
    for name in {FAILURE, DIFF}.difference(but) if (before / CONFIG).exists() else ():  # nothing is restored yet
        (directory / name).unlink(missing_ok=True)  # there may have been none before
    for name in UNDONE:
        if name not in but and (before / name).exists():
            (before / name).replace(directory / name)
    shutil.rmtree(before, ignore_errors=True)


def has_trained(directory: Path) -> bool:
    """Return whether there are logged values or checkpoints; if so, keep the directory after a ConfigError."""
    metrics = directory / METRICS
    return (metrics.exists() and metrics.stat().st_size > 0) or any((directory / CHECKPOINTS).glob("*"))


def empty_directory(directory: Path, keep: Set[str]) -> None:
    """Delete the files of a run, except the names `keep`, which existed before it.

    Remove the directory if it is empty.
    """
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
    """Write config.yaml, with paths relative to the project's root."""
    replace_text(directory / CONFIG, to_yaml(portable(project.root, plain(cfg, resolve=False))))


def to_yaml(values: dict[str, Any] | list[str]) -> str:
    """Return OmegaConf.to_yaml of the values. Entries are cached, because most are the same in all jobs of a sweep."""
    entries: list[Any] = [{k: v} for k, v in values.items()] if isinstance(values, dict) else [[v] for v in values]
    return "".join(map(_dumped, entries)) or OmegaConf.to_yaml(values)


def _dumped(entry: Any) -> str:
    key = repr(entry)
    if key not in _dumps:
        if len(_dumps) >= MOST_DUMPS:
            _dumps.clear()
        _dumps[key] = OmegaConf.to_yaml(entry)
    return _dumps[key]
