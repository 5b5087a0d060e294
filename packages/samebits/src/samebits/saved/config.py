"""The door to a run directory, which may be somebody else's: `enter` first, then its config, as data. Interpolations
are not resolved, nothing is executed, no symbolic link out of it is followed, no pipe is waited for.

Imports no torch. A mistake in a file is a ConfigError of one line.
"""

from __future__ import annotations

import io
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from samebits.errors import ConfigError, CorruptFileError
from samebits.files import read_text
from samebits.project import Project
from samebits.saved.paths import localized, moved_here, writer
from samebits.schema import check_resolved, completed, hints_of, plain
from samebits.targets import check_nodes

T = TypeVar("T")
log = logging.getLogger("samebits")

CONFIG, OVERRIDES = "config.yaml", "overrides.yaml"
OF_WANDB = re.compile(r"(offline-)?run-")  # folders below wandb/ that are that library's
_said: set[tuple[Path, str]] = set()  # warnings given, so that each is given once per process
MOST_NODES, DEEPEST, LONGEST = 50_000, 50, 1 << 16  # values in a saved yaml, levels, characters of one value
LoaderOfC = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's: 1 ms per config, not 10


def read_config(project: Project, directory: Path) -> DictConfig:
    """Returns a run's config. It was resolved when the run began, so an interpolation in it is an error.

    A key that the run's version did not have gets its default, one that no longer exists is dropped; both are logged.
    """
    enter(directory)
    return current(project, saved_config(project, directory), directory / CONFIG)


def current(project: Project, cfg: Any, path: Path) -> DictConfig:
    """Returns a config that some version has written to `path` as one of this version."""
    hints = hints_of(project.schema)
    needed = [one.name for one in fields(project.schema) if one.default is one.default_factory is MISSING]
    groups = [name for name in needed if hints[name] is not str]
    if not isinstance(cfg, DictConfig) or not all(isinstance(cfg._get_node(group), DictConfig) for group in groups):
        raise ConfigError(f"{path}: not the config of a run, which has {', '.join(groups)}; take it from a copy")
    try:
        check_resolved(OmegaConf.to_container(cfg, resolve=False))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    values, filled, gone = updated(project, plain(cfg, resolve=False))
    for keys, what in ((filled, "younger than this run, with their defaults"), (gone, "gone, and left out")):
        if keys and (path, what) not in _said:
            _said.add((path, what))
            log.warning("%s: keys that are %s: %s", path, what, ", ".join(keys))
    return DictConfig(values)


def saved_config(project: Project, directory: Path) -> Any:
    """Returns config.yaml as it was written, by whatever version, with the paths of this project (paths.py); of
    anybody, so nothing of it is checked."""
    cfg = _loaded(directory / CONFIG, _checked_omegaconf)
    if not isinstance(cfg, DictConfig):
        return cfg
    was = localized(project.root, plain(cfg, resolve=False))
    here = moved_here(project.root, was, writer(directory))
    if here != was and (directory, "moved") not in _said:
        _said.add((directory, "moved"))
        log.warning("%s: was saved by a project in %s: its paths are this one's", directory / CONFIG, writer(directory))
    return DictConfig(here)


def check_saved(project: Project, cfg: Any) -> None:
    """ConfigError for an interpolation or a `_target_` anywhere in a config, of whatever version, that the present one
    would not build; `current` would leave out keys that it does not know."""
    check_nodes(project, _moved(project, plain(cfg, resolve=False)))


def updated(project: Project, cfg: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """Returns (a plain config as one of this version, "key=value" of keys that it lacked, keys that are gone)."""
    values, filled, gone = completed(project.schema, _moved_keys(project, _moved(project, cfg)))
    for group, schema in project.own.items():
        names = {one.name for one in fields(schema)}
        if isinstance(node := values.get(group), dict):
            whole, more, _ = completed(schema, {name: value for name, value in node.items() if name in names}, group)
            values[group], filled = node | whole, filled + more
    return values, filled, gone


def _moved(project: Project, node: Any) -> Any:
    """Returns the node with _target_ paths of older versions replaced by the present ones."""
    if isinstance(node, dict):
        return {
            key: _moved_path(project, value) if key == "_target_" else _moved(project, value)
            for key, value in node.items()
        }
    return [_moved(project, value) for value in node] if isinstance(node, list) else node


def _moved_keys(project: Project, cfg: dict[str, Any]) -> dict[str, Any]:
    """Returns the whole config with each value under its present key; one that stands there already stays."""
    whole = {group: dict(node) if isinstance(node, dict) else node for group, node in cfg.items()}
    for old, new in project.moved_keys.items():
        (group, name), (home, called) = old.split("."), new.split(".")
        node = whole.get(group)
        if isinstance(node, dict) and name in node:
            whole.setdefault(home, {}).setdefault(called, node.pop(name))
    return whole


def _moved_path(project: Project, text: Any) -> Any:
    for old, new in project.moved.items() if isinstance(text, str) else ():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def read_overrides(project: Project, directory: Path) -> list[str]:
    """Returns the overrides that the user typed for a run, interpolations unresolved."""
    path = directory / OVERRIDES
    values = _loaded(path, checked_yaml) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{path}: expected a list of texts such as seed=1; it is damaged - take it from a copy")
    return [override_of_now(project, value) for value in values]


def override_of_now(project: Project, text: str) -> str:
    """An override that somebody typed for an older version, or its key alone, with today's paths and keys."""
    text = re.sub(r"(?<=_target_)([=:] *)([a-zA-Z_0-9.]+)", lambda m: m[1] + _moved_path(project, m[2]), text)
    return re.sub(r"^(\+*)([a-z_.]+)(?==|$)", lambda m: m[1] + project.moved_keys.get(m[2], m[2]), text)


def enter(directory: Path, jobs: Collection[str] = ()) -> None:
    """The door: ConfigError if a directory of a run, which may be anybody's, holds a symbolic link out of it, a pipe, a
    socket or a device. Whatever reads or writes there comes in here first; samebits.files opens its files.

    jobs: the names of a sweep's jobs, which are not looked into: each has a door of its own. Nor are wandb's own
    folders, from which it links to its cache: nothing here reads, writes or sends what is in them. Nothing that lies in
    a folder leaves it out.
    """
    base = directory.resolve()
    for path in _entries(base, jobs):
        try:
            kind = path.lstat().st_mode
            out = stat.S_ISLNK(kind) and not path.resolve().is_relative_to(base)
        except FileNotFoundError:  # it was just deleted, as an older checkpoint is
            continue
        except (RuntimeError, OSError) as error:  # links that go round in a ring
            raise ConfigError(f"{path}: {error}; remove it") from None
        if out:
            raise ConfigError(
                f"{path}: is a symbolic link to {os.readlink(path)}, and a run keeps to its own directory - put the "
                "file or folder itself there; for another disk, hydra.run.dir="
            )
        if not (stat.S_ISLNK(kind) or stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            raise ConfigError(f"{path}: is neither a file nor a folder; remove it")


def _entries(base: Path, jobs: Collection[str]) -> Iterator[Path]:
    """All entries below `base` but those in the folders `jobs` and in wandb's, links not followed."""
    folders = [base]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in listed:
            yield Path(entry.path)
            left_out = entry.name in jobs if folder == base else folder == base / "wandb" and OF_WANDB.match(entry.name)
            if entry.is_dir(follow_symlinks=False) and not left_out:
                folders.append(Path(entry.path))


def _checked_omegaconf(text: str) -> Any:
    check_yaml(text)
    return OmegaConf.load(io.StringIO(text))


def checked_yaml(text: str) -> Any:
    check_yaml(text)
    return yaml.load(text, LoaderOfC)


def load_sections(text: str) -> Any:
    """As checked_yaml. Each section (from a key at the start of a line to the next) is parsed once in a process: the
    configs of a sweep's jobs share most of them. A text that does not fall apart into one key each is parsed whole."""
    sections = [part for part in re.split(r"(?m)^(?=[A-Za-z_])", text) if part]
    whole: dict[str, Any] = {}
    try:
        for section in sections:
            found = _section(section)
            if not isinstance(found, dict) or len(found) != 1 or len(text) > MOST_NODES:  # more is for check_yaml
                return checked_yaml(text)
            whole |= found
    except (yaml.YAMLError, ValueError, RecursionError):  # its line is one of the section: ask for the file's
        return checked_yaml(text)
    return whole if whole and len(whole) == len(sections) else checked_yaml(text)


_section = lru_cache(4096)(checked_yaml)


def load_plain(path: Path, kind: type[T], load: Callable[[str], Any] = checked_yaml) -> T:
    """What a saved yaml holds, as plain values; an empty `kind` where there is no such file, or nothing in it."""
    value = _loaded(path, load) if os.path.lexists(path) else None
    if value is not None and not isinstance(value, kind):
        raise CorruptFileError(f"{path}: damaged, it holds no {kind.__name__} but a {type(value).__name__}")
    return kind() if value is None else value


def _loaded(path: Path, load: Callable[[str], Any]) -> Any:
    """load: of a text that may be anybody's; it calls check_yaml."""
    try:
        return load(read_text(path))
    except CorruptFileError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: not the yaml that a run wrote ({line}); take it from a copy") from None


def check_yaml(text: str) -> None:
    """ValueError for what no run writes: aliases, of which a few lines make billions of values, tags, which name
    classes, and more levels or values than any config has. Nothing is built here."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=LoaderOfC):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"line {event.start_mark.line + 1}: an alias or anchor")
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if event.tag is not None:
                raise ValueError(f"line {event.start_mark.line + 1}: a tag, {event.tag[:40]}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or nodes > MOST_NODES or len(getattr(event, "value", "") or "") > LONGEST:
            what = f"{DEEPEST} levels, {MOST_NODES:,} values or {LONGEST:,} characters in one"
            raise ValueError(f"line {event.start_mark.line + 1}: more than {what}")
