"""Compute fingerprints of the files that a config names, to identify data at another path. No torch, no h5py.

The hash includes the size of each file and BLOCKS blocks, evenly spaced from its first to its last byte: all of a small
file, half a megabyte of a large one, for any format. Not detected: changes in place between the blocks of a large file,
and the files of a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from samebits.code import ENVIRONMENT
from samebits.errors import CorruptFileError
from samebits.files import read_json, write_json
from samebits.saved import flat, portable
from samebits.schema import plain

BLOCKS, BLOCK = 32, 1 << 14  # blocks of one file; several files share them, with at least two for each
OTHER_GROUPS = ("logger", "profiler", "resume", "sweep", "hydra", "name")
log = logging.getLogger("samebits")


def fingerprints(root: Path, cfg: Any) -> dict[str, dict[str, Any]]:
    """Return {key: {path, bytes, digest}} of the values that name local files.

    Such values are absolute paths, glob patterns, or lists of them, of files that can be read. cfg: the resolved config
    of a run.
    """
    values = {key: value for key, value in flat(plain(cfg)).items() if key.split(".")[0] not in OTHER_GROUPS}
    found = {key: _files(value) for key, value in values.items()}
    return {key: {"path": portable(root, values[key]), **_hashed(files)} for key, files in found.items() if files}


def files_of(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the fingerprints of the files at the start of the run; {} if an older version started it.

    Raise CorruptFileError if they have a wrong form.
    """
    found = read_json(run_dir / ENVIRONMENT).get("files", {})
    whole = {"path", "bytes", "digest"}
    if not all(whole <= one.keys() and isinstance(one["bytes"], int) for one in found.values()):
        raise CorruptFileError(f"{run_dir / ENVIRONMENT}: damaged, its key 'files' has a wrong form")
    return found


def keep_files(root: Path, run_dir: Path, cfg: DictConfig, begins: bool) -> list[str]:
    """Record the files in environment.json. Return a line for each file with another path and the same content.

    Warn about files with another content. begins: the run has no step yet.
    """
    began, now = files_of(run_dir), fingerprints(root, cfg)
    if begins:
        write_json(run_dir / ENVIRONMENT, read_json(run_dir / ENVIRONMENT) | {"files": now})
        return []
    _warn(began, now)
    moved = {key: one for key, one in now.items() if key in began and one["path"] != began[key]["path"]}
    return [f"{k}={o['path']}: the same data as {began[k]['path']}" for k, o in moved.items() if is_same(began[k], o)]


def warn_of_changed_files(root: Path, run_dir: Path, cfg: Any) -> None:
    """Log a warning for each data file of the run whose content has changed since its start. cfg: the run's config with
    overrides; a file at another path was chosen by an override."""
    began = {key: file for key, file in files_of(run_dir).items() if key.startswith("data.")}
    now = fingerprints(root, cfg) if began else {}
    _warn(began, {key: found for key, found in now.items() if key in began and began[key]["path"] == found["path"]})


def _warn(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Log a warning for each file with another content than at the start of the run."""
    for key, found in now.items():
        if key in began and not is_same(began[key], found):
            log.warning("%s: %s", key, other_data(began[key], found))


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two fingerprints are equal."""
    return (one.get("bytes"), one["digest"]) == (other.get("bytes"), other["digest"])


def other_data(began: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the warning about a file whose content differs from that at the start of the run."""
    return (
        f"{now.get('path')} ({now.get('bytes'):,} bytes) differs from the data at the start of the run "
        f"({began.get('path')}, {began.get('bytes'):,} bytes)"
    )


def _files(value: Any) -> list[str]:
    """Return the files that a value names, in their order; [] if any part of it is not a file that can be read."""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and os.path.isabs(name) for name in names):
        return []
    files = [file for name in names for file in ([name] if os.path.lexists(name) else sorted(glob(name)))]
    return files if all(os.path.isfile(file) and os.access(file, os.R_OK) for file in files) else []


def _hashed(files: list[str]) -> dict[str, Any]:
    digest, size, blocks = hashlib.sha256(), 0, max(2, BLOCKS // len(files))
    for name in files:
        with open(name, "rb") as file:
            own = os.fstat(file.fileno()).st_size
            digest.update(f"{own}\n".encode())
            spread = [max(0, own - BLOCK) * i // (blocks - 1) for i in range(blocks)]
            for start in range(0, own, BLOCK) if own <= blocks * BLOCK else spread:
                file.seek(start)
                digest.update(file.read(BLOCK))
        size += own
    return {"bytes": size, "digest": digest.hexdigest()[:32]}
