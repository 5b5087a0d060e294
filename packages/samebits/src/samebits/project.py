"""What the engine is given of a project, of which it imports nothing: a `Project`, and of commands that run its code a
`Program`. Both are handed down, into other processes too (pickled).

src/train.py: run_hydra(PROGRAM, job)      engine: program.check(cfg), program.training()(rank)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Project:
    """Facts of a project: where its files are, and what a yaml may name.

    name: of a module of the project's package, such as "lab.project". root: its folder, with conf/, src/ and outputs/.

    allowed: what a yaml may name as _target_, "lab.models.*"; factories: the functions among them that are called while
    the config is built. remedies: {beginning of a _target_ that is not allowed: what to do instead of allowing it}.

    schema: of the whole config. own: {"data": its schema, "optim": ...}, the run's keys among a target's arguments.
    moved: {import path prefix in older versions: prefix now}. moved_keys: {key of older versions: now}, with
    data.parts.*.name for that key of each node in data.parts. moved_values: {name of a key now: {its value in older
    versions: now}}. moved_arguments: {name of an older key that is an argument of a class: the class's _target_}.
    aliases: those of `moved` and `moved_keys` that a command and a yaml may still use, of the version before.
    paths: keys whose values are files or folders. resolvers: {"name": a function for ${name:...} in a yaml}.
    watching: groups of its own that say what is watched of a run, not what it computes.
    asked: {parameter of what a config builds: key of the run's value that it gets where its node gives none}.
    expand: replaces keys of a composed config by what they choose, before it is resolved.
    """

    name: str
    root: Path
    allowed: tuple[str, ...]
    factories: tuple[str, ...]
    schema: type
    own: Mapping[str, type]
    paths: tuple[str, ...]
    resolvers: Mapping[str, Callable[..., Any]]
    expand: Callable[[Any], None] = lambda cfg: None
    watching: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    moved_keys: Mapping[str, str] = field(default_factory=dict)
    moved_values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    moved_arguments: Mapping[str, str] = field(default_factory=dict)
    aliases: Collection[str] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def conf(self) -> Path:
        return self.root / "conf"

    @property
    def beside(self) -> tuple[str, ...]:
        """Groups that say where a run computes and what is watched of it: they change nothing of what is computed."""
        return ("hardware", "logger", "profiler", *self.watching)


@dataclass(frozen=True, kw_only=True)
class Program(Project):
    """A project with the functions that the engine calls to check and run its configs.

    check: raises ConfigError for a config that cannot be run, and returns it typed; read: one that was checked when its
    run began. scores: (a whole, plain config, *beginnings of splits' names) -> the keys of its scores. fetch: fetches
    remote files of a config's `data`, returns their versions. measure: (a stage of `tune`, a config) -> what
    samebits.process.trials says. training: imports what trains, and returns the function that does it in a rank
    (samebits.process.Rank), which returns the content of result.json. try_out: builds a job and times its steps.
    """

    check: Callable[[Any], Any]
    read: Callable[[Any], Any]
    scores: Callable[..., list[str]]
    fetch: Callable[[Mapping[str, Any], Callable[[], object]], dict[str, str]]
    measure: Callable[[str, Any], Any]
    training: Callable[[], Callable[[Any], dict[str, Any]]]
    try_out: Callable[..., dict[str, Any]]
