"""Read the config of a run directory, which may be somebody else's: as data. Interpolations are not resolved, nothing
is executed, no symbolic link is followed.

Imports no torch. A mistake in a file is a ConfigError of one line.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.app import app
from engine.config.schema import check_resolved, completed, plain
from engine.errors import ConfigError

log = logging.getLogger("engine")

CONFIG, OVERRIDES = "config.yaml", "overrides.yaml"
GROUPS = ("data", "model", "task", "optim", "trainer", "hardware")
_said: set[tuple[Path, str]] = set()  # warnings given, so that each is given once per process
FOLDERS = ("", "checkpoints", "stuck", ".before")  # folders of a run directory that a run writes into


def read_config(directory: Path) -> DictConfig:
    """Returns a run's config. It was resolved when the run began, so an interpolation in it is an error.

    A key that the run's version did not have gets its default, one that no longer exists is dropped; both are logged.
    """
    path = directory / CONFIG
    cfg = _loaded(path)
    if not isinstance(cfg, DictConfig) or not all(isinstance(cfg._get_node(group), DictConfig) for group in GROUPS):
        raise ConfigError(f"{path}: not the config of a run, which has {', '.join(GROUPS)}; take it from a copy")
    try:
        check_resolved(OmegaConf.to_container(cfg, resolve=False))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _of_this_version(cfg, path)


def _of_this_version(cfg: DictConfig, path: Path) -> DictConfig:
    values, filled, gone = completed(app().schema, _moved(plain(cfg, resolve=False)))
    for group, schema in app().own.items():
        names = {one.name for one in fields(schema)}
        own = {name: value for name, value in values[group].items() if name in names}
        whole, more, _ = completed(schema, own, group)
        values[group], filled = values[group] | whole, filled + more
    for keys, what in ((filled, "younger than this run, with their defaults"), (gone, "gone, and left out")):
        if keys and (path, what) not in _said:
            _said.add((path, what))
            log.warning("%s: keys that are %s: %s", path, what, ", ".join(keys))
    return DictConfig(values)


def _moved(node: Any) -> Any:
    """Returns the node with _target_ paths of older versions replaced by the present ones."""
    if isinstance(node, dict):
        return {key: _moved_path(value) if key == "_target_" else _moved(value) for key, value in node.items()}
    return [_moved(value) for value in node] if isinstance(node, list) else node


def _moved_path(text: Any) -> Any:
    for old, new in app().moved.items() if isinstance(text, str) else ():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def read_overrides(directory: Path) -> list[str]:
    """Returns the overrides that the user typed for a run, interpolations unresolved."""
    path = directory / OVERRIDES
    values = _loaded(path, yaml.SafeLoader) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{path}: expected a list of texts such as optim.lr=0.1; it is damaged - take it from a copy")
    return [re.sub(r"(?<=_target_)([=:] *)([a-zA-Z_0-9.]+)", lambda m: m[1] + _moved_path(m[2]), v) for v in values]


def check_links(directory: Path) -> None:
    """ConfigError if the directory has symbolic links out of it, or pipes: a run would write somewhere else."""
    base = directory.resolve()
    for entry in _entries(base):
        if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(base):
            raise ConfigError(
                f"{entry.path}: is a symbolic link to {os.readlink(entry.path)}, and a run writes only into its own "
                "directory - put the file or folder itself there; for another disk, hydra.run.dir="
            )
        if not (entry.is_symlink() or entry.is_dir() or entry.is_file()):
            raise ConfigError(f"{entry.path}: is neither a file nor a folder; remove it")


def _entries(base: Path) -> Iterator[os.DirEntry[str]]:
    for name in FOLDERS:
        if (base / name).is_dir():
            with os.scandir(base / name) as entries:
                yield from entries


def _loaded(path: Path, loader: type | None = None) -> Any:
    try:
        if loader is None:
            return OmegaConf.load(path)
        return yaml.load(path.read_text(encoding="utf-8"), loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: not the yaml that a run wrote ({text}); take it from a copy") from None
