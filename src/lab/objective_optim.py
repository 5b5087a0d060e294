"""Optimizers of single objectives: complete the entries of `optim.objectives` with the values of `optim`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.groups import ObjectiveConfig, OptimConfig
from samebits.errors import ConfigError
from samebits.schema import show, split_own

# keys that an entry takes from `optim` even if it has its own `_target_`: they are not arguments of the class
SHARED = ("schedule", "decay_norms_and_biases", "lr_factors", "_partial_")


@dataclass(frozen=True)
class OptimNode:
    """An optimizer and its schedule. key: `optim`, or `optim.objectives.<name>`. options: the keys that the run reads.
    optimizer: the other keys, `_target_` and its arguments."""

    key: str
    options: OptimConfig | ObjectiveConfig
    optimizer: dict[str, Any]

    @property
    def target(self) -> str:
        """The import path of the optimizer."""
        return str(self.optimizer["_target_"])


def keys_of_objectives(values: Mapping[str, Any]) -> list[str]:
    """Return the keys of the entries of `optim.objectives`. values: the whole config as plain values."""
    objectives = values["optim"].get("objectives")
    return [f"optim.objectives.{name}" for name in objectives] if isinstance(objectives, Mapping) else []


def with_objectives(values: dict[str, Any]) -> dict[str, Any]:
    """Return the plain config with complete entries of `optim.objectives`. Raise ConfigError if one is not a mapping
    with at least one key."""
    optim, trainer = values["optim"], values.get("trainer") or {}
    if not keys_of_objectives(values):
        return values
    shared = {name: value for name, value in optim.items() if name != "objectives"}
    complete = {}
    for name, entry in optim["objectives"].items():
        key = f"optim.objectives.{name}"
        if not str(name).isidentifier():
            raise ConfigError(f"{key}: {show(name)} cannot name an objective - see docs/rates_optimizers.md")
        if not isinstance(entry, Mapping):
            raise ConfigError(
                f"{key}: expected keys of an optimizer, got {show(entry)} - choose one by +optim@{key}=sgd, or set "
                f"single values, +{key}.lr=1e-4"
            )
        own = {k: v for k, v in entry.items() if k != "objectives" or v}  # every yaml of conf/optim has an empty one
        if "objectives" in own:
            raise ConfigError(f"{key}.objectives: has no effect - remove it")
        if not own:
            raise ConfigError(f"{key}: is empty, so it has no effect - remove it, or set a value, +{key}.lr=1e-4")
        base = {k: v for k, v in shared.items() if k in SHARED} if "_target_" in own else shared
        complete[name] = {"clip_norm": trainer.get("clip_norm")} | _merged(base, own)
    return values | {"optim": optim | {"objectives": complete}}


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `own` with the missing keys of `base`, also in nested mappings; one with a _target_ replaces the other."""
    merged = dict(base)
    for name, value in own.items():
        shared: Any = base.get(name)
        if not isinstance(value, Mapping) or not isinstance(shared, Mapping) or "_target_" in value:
            merged[name] = value
        elif name == "lr_factors":  # the first expression that matches applies, so those of `own` come first
            merged[name] = {**value, **{k: v for k, v in shared.items() if k not in value}}
        else:
            merged[name] = _merged(shared, value)
    return merged


def nodes_of(optim: OptimConfig, optimizer: dict[str, Any]) -> dict[str, OptimNode]:
    """Return {objective: OptimNode}: first `optim` itself with the name "", then the complete entries of objectives."""
    nodes = {"": OptimNode("optim", optim, optimizer)}
    for name, entry in optim.objectives.items():
        key = f"optim.objectives.{name}"
        nodes[str(name)] = OptimNode(key, *split_own(entry, ObjectiveConfig, key))
    return nodes
