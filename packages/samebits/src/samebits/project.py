"""Describe a project to samebits, which does not import it: a `Project`, and for commands that run its code a
`Program`. Both are passed as arguments and pickled for other processes.

src/train.py: run_hydra(PROGRAM, job)      samebits: program.check(cfg), program.training()(rank)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Project:
    """Facts of a project: where its files are, and which names a yaml may use.

    name: a module of the project's package, e.g. "lab.project". root: its folder, with conf/, src/ and outputs/.

    allowed: targets that a yaml may name as _target_, e.g. "lab.models.*". factories: functions among them that are
    called while the config is built. remedies: {start of a _target_ that is not allowed: what to do instead of allowing
    it}.

    schema: a dataclass, the schema of the config. own: {"data": schema, "optim": ...}, keys of a group that the run
    reads itself and does not pass to the class in _target_. paths: keys whose values are files or folders. resolvers:
    {"name": function for ${name:...} in a yaml, or "module:function", which is imported when it is first called and
    must accept `_parent_`}. expand: a function that replaces short keys in a composed config before it is resolved.
    default_arguments: {parameter of a class in the config: key whose value it gets if its node does not set it}.
    watching: the project's groups that change only the observation of a run, such as loggers, and not its results.

    Old names: moved: {import path prefix in older versions: current prefix}. moved_keys: {old key: current key, or ""
    if it no longer exists}; data.parts.*.name means that key of each node in data.parts. moved_values: {current key:
    {old value: current value}}. moved_arguments: {old key that is an argument of a class: the class's _target_}.
    aliases: entries of `moved` and `moved_keys` that commands and yamls may still use."""

    name: str
    root: Path
    allowed: tuple[str, ...]
    factories: tuple[str, ...]
    schema: type
    own: Mapping[str, type]
    paths: tuple[str, ...]
    resolvers: Mapping[str, Callable[..., Any] | str]
    expand: Callable[[Any], None] = lambda cfg: None
    watching: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    moved_keys: Mapping[str, str] = field(default_factory=dict)
    moved_values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    moved_arguments: Mapping[str, str] = field(default_factory=dict)
    aliases: Collection[str] = ()
    default_arguments: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The name of the project's package."""
        return self.name.partition(".")[0]

    @property
    def conf(self) -> Path:
        """The folder of the project's config."""
        return self.root / "conf"

    @property
    def neutral_groups(self) -> tuple[str, ...]:
        """Groups that determine where a run computes and what is observed of it; they do not change the results."""
        return ("hardware", "logger", "profiler", *self.watching)


@dataclass(frozen=True, kw_only=True)
class Program(Project):
    """A project with the functions that samebits calls to check and run its configs.

    check: returns a typed config; raises ConfigError if it cannot be run. read: the same for a config that was checked
    when its run started. scores: (a whole, plain config, *prefixes of splits' names) -> the keys of its scores. fetch:
    downloads remote files of a config's `data`, returns their versions. measure: (a stage of `tune`, a config) -> see
    samebits.process.trials. training: imports the training code, and returns the function that trains in a rank
    (samebits.process.RankProcess) and returns the content of result.json.
    """

    check: Callable[[Any], Any]
    read: Callable[[Any], Any]
    scores: Callable[..., list[str]]
    fetch: Callable[[Mapping[str, Any], Callable[[], object]], dict[str, str]]
    measure: Callable[[str, Any], Any]
    training: Callable[[], Callable[[Any], dict[str, Any]]]
