"""Find config differences between jobs of a sweep in keys that were not swept. Imports neither Hydra nor torch.

A default in conf/ may be edited between two commands of a sweep. Jobs may then have the same overrides but different
configs, so they are not repetitions: the report prints the keys that differ, and groups jobs by them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.project import Project
from samebits.saved.config import CONFIG, load_plain, load_sections, updated
from samebits.saved.paths import portable, writer
from samebits.schema import join

NEVER_COMPARED = ("hydra", "sweep", "resume")
JOBS_OWN = "hydra"  # key in `follows` for values that come from the job's number, directory or time
_ABSENT = object()
_current: set[tuple[Any, ...]] = set()  # project, keys and targets of configs that this version has written


def flat(node: Any, key: str = "") -> dict[str, Any]:
    """Flatten {"a": {"b": 1}, "c": [1]} to {"a.b": 1, "c": [1]}. An empty mapping is a value."""
    if isinstance(node, dict) and (node or not key):
        return {k: v for name, value in node.items() for k, v in flat(value, join(key, str(name))).items()}
    return {key: node}


def load_flat(project: Project, directory: Path) -> dict[str, Any]:
    """Return the config of a run as {dotted key: value}, in the form of this version, to compare runs.

    It includes keys that are newer than the run; paths are relative to the root of the project that wrote it. Return {}
    if the run has no config.
    """
    whole = load_plain(directory / CONFIG, dict, load_sections)
    values = flat(whole)
    kind = (project.name, *(f"{key}={value}" if key.endswith("_target_") else key for key, value in values.items()))
    if values and kind not in _current:
        translated = updated(project, whole)[0]
        if translated == whole:
            _current.add(kind)  # jobs of a sweep have few different sets of keys, and `updated` is slow
        values = flat(translated)
    values = portable(project.root, values)
    texts = (one for value in values.values() for one in (value if isinstance(value, list) else [value]))
    elsewhere = any(isinstance(text, str) and os.path.isabs(text) for text in texts)
    return portable(was, values) if elsewhere and (was := writer(directory)) else values


def same_value(one: Any, other: Any) -> bool:
    """Return whether two plain values of configs are equal. NaN is equal to NaN: data.missing=nan is one setting."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other or (one != one and other != other))


def one_spelling(value: Any) -> Any:
    """Return one spelling for equal numbers, also in lists: 1 for 1.0. 1e30 stays, without 30 digits."""
    if isinstance(value, list):
        return [one_spelling(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def is_seed(key: str) -> bool:
    """Return whether the key is a seed: whether its last part is seed."""
    return key.rpartition(".")[2] == "seed"


def folds_of(key: str) -> str | None:
    """Return the key of the number of folds (data.folds) for a key that numbers a fold or a division into folds
    (data.fold, data.fold_repeat); None for other keys."""
    above, dot, last = key.rpartition(".")
    return f"{above}{dot}folds" if last in ("fold", "fold_repeat") else None


@dataclass(frozen=True)
class JobConfig:
    """The data of a job to compare. values: {dotted key: value}, empty if not written yet. name: of its directory."""

    values: Mapping[str, Any]
    overrides: Sequence[str]
    name: str

    def value(self, key: str) -> Any:
        """Return the value of a key, with paths relative to the job's directory."""
        return _without(self.values.get(key, _ABSENT), self.name)


def unswept(
    project: Project, jobs: Sequence[JobConfig], swept: Collection[str], follows: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the dotted keys that differ between jobs although they were not swept.

    follows: {swept key: keys that interpolate it}. Seeds, names and the groups Project.neutral_groups are not compared.
    A key that an option of a swept group may have set (keys below the group; for an experiment, any key) is compared
    only between jobs with the same option.
    """
    jobs = [job for job in jobs if job.values]
    keys = dict.fromkeys(key for job in jobs for key in job.values)
    groups = [key for key in swept if key not in keys]
    explained = {*swept, *(key for of in (*swept, JOBS_OWN) for key in follows.get(of, ()))} - {*groups}
    left_out = (*project.neutral_groups, "name", *NEVER_COMPARED)
    compared = [key for key in keys if key.split(".")[0] not in left_out and not is_seed(key)]
    compared = [key for key in compared if not any(_within(key, one) for one in explained)]
    return [key for key in compared if _differs(key, jobs, [one for one in groups if _owns(one, key, keys)])]


def _differs(key: str, jobs: Sequence[JobConfig], owners: Sequence[str]) -> bool:
    """Return whether two jobs with the same options of `owners` have different values of the key.

    owners: the swept groups that may have set the key.
    """
    if all(same_value(job.values.get(key, _ABSENT), jobs[0].values.get(key, _ABSENT)) for job in jobs):
        return False  # the usual case
    first: dict[tuple[str | None, ...], Any] = {}  # options -> the value of the first job that has them
    for job in jobs:
        options, value = tuple(_choice(job.overrides, group) for group in owners), job.value(key)
        if not same_value(first.setdefault(options, value), value):
            return True
    return False


def dependents(project: Project, raw: Mapping[str, Any], key: str) -> list[str]:
    """Return the keys of an unresolved config that interpolate `key`, directly or through other keys."""
    texts = {name: str(value) for name, value in raw.items() if "${" in str(value)}
    found = {key}
    reads = {name for name, text in texts.items() if any(f"${{{one}:" in text for one in project.resolvers)}

    def follows(name: str, key: str) -> bool:
        return _refers(texts[name], key) or (name in reads and _within(key, name.partition(".")[0]))  # its group

    while more := {name for name in texts if name not in found and any(follows(name, one) for one in found)}:
        found |= more
    return sorted(found - {key})


def _refers(text: str, key: str) -> bool:
    if key == JOBS_OWN:
        return re.search(r"\$\{(hydra|now|suffix):", text) is not None
    for dots, name in re.findall(r"\$\{(\.*)([A-Za-z_][\w./]*)", text):
        if _within(name, key) or _within(key, name) or (dots and f".{key}".endswith(f".{name}")):
            return True
    return False


def _within(key: str, above: str) -> bool:
    """Return whether a dotted key is `above` or below it. above: as in an override (~key, group@package, a/b)."""
    return f"{key}.".startswith(above.lstrip("~").partition("@")[0].replace("/", ".") + ".")


def _owns(group: str, key: str, keys: Iterable[str]) -> bool:
    """Return whether an option of the group may have set `key`: a key below the group, or any key (an experiment)."""
    somewhere = group.startswith("~") or any(_within(one, group) for one in keys)
    return _within(key, group) or "@" in group or not somewhere


def _choice(overrides: Sequence[str], key: str) -> str | None:
    found = (text.partition("=") for text in reversed(overrides))
    return next((value.strip("'\"") for name, _, value in found if name.lstrip("+") == key), None)


def _without(value: Any, name: str) -> Any:
    """Return the value with paths relative to the job's directory, because such paths always differ between jobs."""
    if isinstance(value, str) and name and name in value:
        return value.partition(name)[2]
    return [_without(one, name) for one in value] if isinstance(value, list) else value
