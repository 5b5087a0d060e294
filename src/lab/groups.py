"""The groups' schemas: names, types and options, a line for each value.

Their defaults are for saved configs that are older than a key; a new run takes its values from conf/, where every key
must be given (a test keeps both equal). To add a value to a group, add a line here and one in its yaml. A node with a
`_target_` is checked against that signature (samebits.targets.nodes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from lab.options import RULES, MonitorConfig, TrainerConfig
from samebits.process import EngineGroups
from samebits.schema import Rule, option
from samebits.sweeps import SweepConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The run's own keys in `data`; all others are arguments of the dataset."""

    input_shape: list[int]
    num_outputs: Annotated[int, Rule(at_least=1)]
    order: dict[str, Any]
    split_ratio: str | None = None
    split_by: str = "random"
    overfit: Annotated[int | None, Rule(at_least=1)] = None
    transforms: dict[str, Any] = field(default_factory=dict)
    loader: Annotated[str, option("auto", "threads", "workers", "device")] = "auto"
    num_workers: Annotated[int | str, Rule(words=("auto",), at_least=0)] = "auto"


def mixed_parts(data: Any) -> Mapping[str, Any]:
    """Return the parts of data=mixed, {name: node}; {} of data that have another argument of that name, or none."""
    parts = data.get("parts")
    nodes = isinstance(parts, Mapping) and all(
        isinstance(node, Mapping) and "_target_" in node for node in parts.values()
    )
    return parts if nodes else {}


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The run's own keys in `optim`; all others are arguments of the optimizer."""

    schedule: dict[str, Any]
    decay_norms_and_biases: bool = False
    lr_factors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """All keys but this one are arguments of the task."""

    _target_: str = "lab.tasks.supervised.Supervised"  # for runs saved before tasks existed


@dataclass(frozen=True, kw_only=True)
class RootConfig(EngineGroups):
    """The whole config: the engine's groups, and these."""

    name: str
    seed: Annotated[int, Rule(at_least=0, below=2**32)] = 0
    rules: Annotated[int, Rule(at_least=1, at_most=RULES)] = 1
    resume: str | None = None
    sweep: SweepConfig = field(default_factory=SweepConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    data: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]
    optim: dict[str, Any]
    trainer: TrainerConfig
    callback: dict[str, Any] = field(default_factory=dict)
