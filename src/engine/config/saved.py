"""Read what a run directory holds, which may be anybody's: as data, never as something to resolve, run or follow.

Imports no torch. Whatever is wrong with a file is one line, a ConfigError.
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

log = logging.getLogger("lab")

CONFIG, OVERRIDES = "config.yaml", "overrides.yaml"
GROUPS = ("data", "model", "task", "optim", "trainer", "hardware")
_said: set[tuple[Path, str]] = set()  # once in a process
FOLDERS = ("", "checkpoints", "stuck", ".before")  # of a run directory, in which a run writes


def read_config(directory: Path) -> DictConfig:
    """The config of a run, which was resolved when the run began: an interpolation in it is not a run's.

    A key that is younger than the run has its default, one that is gone is left out; a line says both.
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
    """Every _target_ of an older version as it is called now."""
    if isinstance(node, dict):
        return {key: _moved_path(value) if key == "_target_" else _moved(value) for key, value in node.items()}
    return [_moved(value) for value in node] if isinstance(node, list) else node


def _moved_path(text: Any) -> Any:
    for old, new in app().moved.items() if isinstance(text, str) else ():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def read_overrides(directory: Path) -> list[str]:
    """What was typed for a run, interpolations as they were typed."""
    path = directory / OVERRIDES
    values = _loaded(path, yaml.SafeLoader) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{path}: expected a list of texts such as optim.lr=0.1; it is damaged - take it from a copy")
    return [re.sub(r"(?<=_target_)([=:] *)([a-zA-Z_0-9.]+)", lambda m: m[1] + _moved_path(m[2]), v) for v in values]


def check_links(directory: Path) -> None:
    """Refuse a run directory in which a run would write through a symbolic link, or into a pipe, to somewhere else."""
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
