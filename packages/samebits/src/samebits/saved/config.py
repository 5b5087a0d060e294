"""Read the config and overrides of a run directory, which may be untrusted. Call `check_run_dir` before any access.

Interpolations are not resolved, code is not executed, symbolic links out of the directory are not followed, pipes are
not read. Errors in a file raise a ConfigError of one line. Imports no torch.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig
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
OF_WANDB = re.compile(r"(offline-)?run-")  # folders below wandb/ that the library wandb writes
_said: set[tuple[Path | str, str]] = set()  # warnings that this process has already printed
MOST_NODES, DEEPEST, LONGEST = 50_000, 50, 1 << 16  # values in a saved yaml, levels, characters of one value
LoaderOfC = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 1 ms per config instead of 10 ms


def config_loader() -> Any:
    """Return a loader with OmegaConf's rules for numbers and repeated keys, and libyaml's parser if yaml has it."""
    try:
        from omegaconf._yaml import get_yaml_loader  # since OmegaConf 2.4, which uses libyaml itself
    except ImportError:
        from omegaconf._utils import get_yaml_loader
    rules = get_yaml_loader()
    return rules if issubclass(rules, LoaderOfC) else type("ConfigLoader", (LoaderOfC, rules), {})


ConfigLoader = config_loader()


def read_config(project: Project, directory: Path) -> DictConfig:
    """Return the config of a run. It was resolved at the start of the run, so an interpolation raises ConfigError.

    A key that is newer than the run gets its default; a key that no longer exists is removed. Both are logged.
    """
    check_run_dir(directory)
    return current(project, _loaded(directory / CONFIG, partial(_here, project, directory)), directory / CONFIG)


def current(project: Project, cfg: Any, path: Path) -> DictConfig:
    """Return a config that any version has written to `path`, in the form of this version."""
    hints = hints_of(project.schema)
    needed = [one.name for one in fields(project.schema) if one.default is one.default_factory is MISSING]
    groups = [name for name in needed if hints[name] is not str]
    values = plain(cfg, resolve=False)
    if not isinstance(values, dict) or not all(isinstance(values.get(group), dict) for group in groups):
        raise ConfigError(f"{path}: not the config of a run, which has {', '.join(groups)}; restore it from a copy")
    try:
        check_resolved(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    values, filled, gone = updated(project, values)
    for keys, what in (
        (filled, "newer than this run and get their defaults"),
        (gone, "no longer used and were removed"),
    ):
        if keys and (path, what) not in _said:
            _said.add((path, what))
            log.warning("%s: keys that are %s: %s", path, what, ", ".join(keys))
    with _reading(path):
        return DictConfig(values)


def saved_config(project: Project, directory: Path) -> Any:
    """Return config.yaml as any version has written it, with the paths of this project (paths.py).

    The content is untrusted and not checked.
    """

    def load(text: str) -> Any:
        values = _here(project, directory, text)
        return DictConfig(values) if isinstance(values, dict) else values

    return _loaded(directory / CONFIG, load)


def _here(project: Project, directory: Path, text: str) -> Any:
    """Return the plain values of config.yaml with the paths of this project."""
    check_yaml(text)
    values = yaml.load(text, ConfigLoader)
    if not isinstance(values, dict):
        return values
    was = localized(project.root, values)
    here = moved_here(project.root, was, writer(directory))
    if here != was and (directory, "moved") not in _said:
        _said.add((directory, "moved"))
        log.warning(
            "%s: was saved by the project in %s: its paths are now in this project",
            directory / CONFIG,
            writer(directory),
        )
    return here


def check_saved(project: Project, cfg: Any) -> None:
    """Raise ConfigError for an interpolation or a forbidden `_target_` in a config of any version.

    This includes keys that `current` would remove.
    """
    check_nodes(project, _moved(project, plain(cfg, resolve=False)))


def updated(project: Project, cfg: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return (a plain config in the form of this version, "key=value" of missing keys, keys that no longer exist)."""
    whole, removed = _moved_keys(project, _moved(project, cfg))
    values, filled, gone = completed(project.schema, whole)
    for group, schema in project.own.items():
        names = {one.name for one in fields(schema)}
        if isinstance(node := values.get(group), dict):
            whole, more, _ = completed(schema, {name: value for name, value in node.items() if name in names}, group)
            values[group], filled = node | whole, filled + more
    return values, filled, removed + gone


def _moved(project: Project, node: Any) -> Any:
    """Return the node with _target_ paths of older versions replaced by the present ones."""
    if isinstance(node, dict):
        return {
            key: _moved_path(project, value) if key == "_target_" else _moved(project, value)
            for key, value in node.items()
        }
    return [_moved(project, value) for value in node] if isinstance(node, list) else node


def _moved_keys(project: Project, cfg: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (the whole config with each value under its present key, keys that no longer exist). A value that is
    already there is kept."""
    whole = {group: dict(node) if isinstance(node, dict) else node for group, node in cfg.items()}
    removed = []
    for old, new, value in taken_out(project, whole):
        if not new:
            removed.append(old)
            continue
        home, _, called = new.rpartition(".")
        node = whole
        for part in home.split("."):
            node = node.setdefault(part, {})
        node.setdefault(called, value)
    return whole, removed


def taken_out(project: Project, cfg: dict[str, Any], keys: Collection[str] | None = None) -> list[tuple[str, str, Any]]:
    """Remove the keys of older versions from a whole plain config, in place.

    Return (old key, present key or "", value in the present form) of each. keys: keys to remove; None: all of
    project.moved_keys.
    """
    found: list[tuple[str, str, Any]] = []
    for old, new in project.moved_keys.items():
        above, _, name = old.rpartition(".")
        for at in _matching(cfg, above.split(".")) if keys is None or old in keys else ():
            node: Any = cfg
            for part in at:
                node = node[part]
            owner = project.moved_arguments.get(name)
            if name in node and owner in (None, node.get("_target_", owner)):
                home, _, called = new.rpartition(".")
                home = ".".join(at) if "*" in home else home
                value = translate_value(project, called, node.pop(name))
                found.append((".".join([*at, name]), new and f"{home}.{called}", value))
    return found


def _matching(node: Any, path: list[str]) -> list[list[str]]:
    """Return the paths of the mappings that match a path, in which * is any name."""
    if not isinstance(node, dict):
        return []
    if not path:
        return [[]]
    names = list(node) if path[0] == "*" else [path[0]] if path[0] in node else []
    return [[str(name), *rest] for name in names for rest in _matching(node[name], path[1:])]


def translate_value(project: Project, name: str, value: Any) -> Any:
    """Return the value of an argument in its present form."""
    known = project.moved_values.get(name, {})
    return known[value] if isinstance(value, str) and value in known else value


def _moved_path(project: Project, text: Any) -> Any:
    for old, new in project.moved.items() if isinstance(text, str) else ():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def read_overrides(project: Project, directory: Path) -> list[str]:
    """Return the overrides of a run as the user typed them, with unresolved interpolations."""
    path = directory / OVERRIDES
    values = _loaded(path, checked_yaml) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{path}: damaged, expected a list of strings such as seed=1 - restore it from a copy")
    return [translate_override(project, value) for value in values]


def translate_override(project: Project, text: str) -> str:
    """Return an override of an older version, or only its key, with the present import paths and keys."""
    text = re.sub(r"(?<=_target_)([=:] *)([a-zA-Z_0-9.]+)", lambda m: m[1] + _moved_path(project, m[2]), text)
    found = re.match(r"(\+*)([A-Za-z_0-9.]+)(=.*)?$", text, re.DOTALL)
    if found is None or not (new := translate_key(project, found[2])):
        return text
    known, value = project.moved_values.get(new.rpartition(".")[2], {}), (found[3] or "")[1:]
    if known and value and not all(part in known for part in value.split(",")):
        return text  # an argument of the same name of another class
    given = ",".join(str(known.get(part, part)).lower() for part in value.split(",")) if known else value
    return f"{found[1]}{new}" + (f"={given}" if found[3] else "")


def translate_key(project: Project, key: str) -> str | None:
    """Return the present name of a key of an older version; "" if it no longer exists, None if it was not renamed."""
    for old, new in project.moved_keys.items():
        if found := re.fullmatch(re.escape(old).replace(r"\*", r"([^.]+)"), key):
            return new.replace("*", found[1]) if "*" in old else new
    return None


def translate_typed_override(project: Project, text: str) -> str:
    """Return a typed override with names of the previous version (project.aliases) replaced by the present ones.

    Print a line to stderr if it was replaced.
    """
    old = text.lstrip("+~").partition("=")[0]
    new = translate_override(project, text)
    key = next((one for one in project.aliases if re.fullmatch(re.escape(one).replace(r"\*", r"[^.]+"), old)), None)
    if key is None and not any(f"={one}" in text for one in project.aliases):
        return text
    if new != text:
        say_renamed(text.lstrip("+~"), new.lstrip("+~"))
    return new


def say_renamed(old: str, new: str) -> None:
    """Print, once, that a key was renamed."""
    if (old, new) not in _said:
        _said.add((old, new))
        print(f"{old}: was renamed to {new} - please use the new name", file=sys.stderr)


def check_run_dir(directory: Path, jobs: Collection[str] = ()) -> None:
    """Raise ConfigError if an untrusted run directory contains a link out of it, a pipe, a socket or a device.

    Call it before any read or write in the directory; samebits.files opens its files. jobs: names of a sweep's jobs,
    which are skipped, because `check_run_dir` is called for each. The folders of wandb are also skipped, because they
    link to its cache and this code does not access them. The content of a folder cannot make this function skip it.
    """
    base = directory.resolve()
    for path in _entries(base, jobs):
        try:
            kind = path.lstat().st_mode
            out = stat.S_ISLNK(kind) and not path.resolve().is_relative_to(base)
        except FileNotFoundError:  # it was deleted in the meantime, for example an outdated checkpoint
            continue
        except (RuntimeError, OSError) as error:  # a cycle of links
            raise ConfigError(f"{path}: {error}; remove it") from None
        if out:
            raise ConfigError(
                f"{path}: is a symbolic link to {os.readlink(path)}, out of the run directory - replace it by the "
                "file or folder; to use another disk, set hydra.run.dir"
            )
        if not (stat.S_ISLNK(kind) or stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            raise ConfigError(f"{path}: is neither a file nor a folder; remove it")


def _entries(base: Path, jobs: Collection[str]) -> Iterator[Path]:
    """Yield all entries below `base`, except in the folders `jobs` and of wandb. Links are not followed."""
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


def checked_yaml(text: str) -> Any:
    """Return the content of a yaml text. Raise ValueError as `check_yaml`."""
    check_yaml(text)
    return yaml.load(text, LoaderOfC)


def load_sections(text: str) -> Any:
    """Return the content of a yaml text, as `checked_yaml`, with a cache of sections.

    A section goes from a key at the start of a line to the next. The configs of a sweep's jobs share most sections. A
    text that cannot be split into sections of one key is parsed whole.
    """
    sections = [part for part in re.split(r"(?m)^(?=[A-Za-z_])", text) if part]
    whole: dict[str, Any] = {}
    try:
        for section in sections:
            found = _section(section)
            # check_yaml must count the nodes of a long text as a whole
            if not isinstance(found, dict) or len(found) != 1 or len(text) > MOST_NODES:
                return checked_yaml(text)
            whole |= found
    except (yaml.YAMLError, ValueError, RecursionError):  # parse all, to get the line in the file for the error
        return checked_yaml(text)
    return whole if whole and len(whole) == len(sections) else checked_yaml(text)


_section = lru_cache(4096)(checked_yaml)


def load_plain(path: Path, kind: type[T], load: Callable[[str], Any] = checked_yaml) -> T:
    """Return the plain values of a saved yaml; an empty `kind` if the file is missing or empty.

    Raise CorruptFileError if it contains another type, ConfigError if it cannot be read.
    """
    value = _loaded(path, load) if os.path.lexists(path) else None
    if value is not None and not isinstance(value, kind):
        raise CorruptFileError(f"{path}: damaged, expected a {kind.__name__}, got a {type(value).__name__}")
    return kind() if value is None else value


def _loaded(path: Path, load: Callable[[str], Any]) -> Any:
    """Return load(text of the file). load: must call check_yaml, because the text is untrusted."""
    with _reading(path):
        return load(read_text(path))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert an error in the values of a yaml file within this block to a ConfigError of one line."""
    try:
        yield
    except CorruptFileError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: not a yaml file of a run ({line}); restore it from a copy") from None


def check_yaml(text: str) -> None:
    """Raise ValueError for yaml that a run never writes. The text is parsed, but no object is created.

    These are aliases (a few lines can expand to billions of values), tags (they name classes), and too many levels or
    values.
    """
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
