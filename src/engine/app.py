"""The project (`lab`) registers its schemas and functions here when it is imported; the engine never imports it.

lab.app: register(App(...))        engine: app().check(cfg), app().start(cfg, directory, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class App:
    """package: its name. allowed: what a yaml may name as _target_, "lab.models.*"; factories: the functions among them
    that are called while the config is built.

    schema: of the whole config. own: {"data": its schema, "optim": ...}, the run's keys among a target's arguments.
    moved: {import path prefix in older versions: prefix now}. moved_keys: {key of older versions: now}.
    remedies: {beginning of a _target_ that is not allowed: what to do instead of allowing it}.
    paths: keys whose values are files or folders. resolvers: {"name": a function for ${name:...} in a yaml}.

    check: raises ConfigError for a config that cannot be run. scores: (a whole, plain config, *beginnings of splits'
    names) -> the keys of its scores. start: runs a checked one in its directory. join: what
    a process does that somebody started beside rank 0; its exit status. try_out: builds a job and times its steps.
    asked: {parameter of what a config builds: key of the run's value that it gets where its node gives none}.
    """

    package: str
    allowed: tuple[str, ...]
    factories: tuple[str, ...]
    schema: type
    own: Mapping[str, type]
    moved: Mapping[str, str]
    paths: tuple[str, ...]
    resolvers: Mapping[str, Callable[..., Any]]
    check: Callable[[Any], Any]
    scores: Callable[..., list[str]]
    start: Callable[..., None]
    join: Callable[[], int]
    try_out: Callable[..., dict[str, Any]]
    asked: Mapping[str, str] = field(default_factory=dict)
    moved_keys: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)


_registered: list[App] = []


def register(app: App) -> None:
    _registered[:] = [app]


def moved_key(key: str) -> str | None:
    """What a key of older versions is now; None if it is none."""
    return _registered[0].moved_keys.get(key) if _registered else None


def app() -> App:
    if not _registered:
        raise RuntimeError("no project is registered: import lab before the engine is used")
    return _registered[0]
