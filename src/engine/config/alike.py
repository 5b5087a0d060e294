"""A run's config as flat values, to compare it with those of others. Imports neither Hydra nor torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.config.paths import portable, writer
from engine.config.saved import CONFIG, load_plain, load_sections, updated
from engine.project import Project
from engine.schema import join

_current: set[tuple[Any, ...]] = set()  # project, keys and targets of configs that this version has written


def flat(node: Any, key: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c": [1]} -> {"a.b": 1, "c": [1]}; an empty mapping is a value."""
    if isinstance(node, dict) and (node or not key):
        return {k: v for name, value in node.items() for k, v in flat(value, join(key, str(name))).items()}
    return {key: node}


def load_flat(project: Project, directory: Path) -> dict[str, Any]:
    """A run's config, {dotted key: value}, as this version would have saved it: with keys that are younger than the
    run, and paths relative to the project that wrote it. Empty where there is none. To compare runs."""
    whole = load_plain(directory / CONFIG, dict, load_sections)
    values = flat(whole)
    kind = (project.name, *(f"{key}={value}" if key.endswith("_target_") else key for key, value in values.items()))
    if values and kind not in _current:
        of_now = updated(project, whole)[0]
        if of_now == whole:
            _current.add(kind)  # the jobs of a sweep are of few kinds, and bringing one up to date takes a while
        values = flat(of_now)
    values = portable(project.root, values)
    texts = (one for value in values.values() for one in (value if isinstance(value, list) else [value]))
    elsewhere = any(isinstance(text, str) and os.path.isabs(text) for text in texts)
    return portable(was, values) if elsewhere and (was := writer(directory)) else values


def is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"
