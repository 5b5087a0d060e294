"""The schemas of the config groups: name, type and options of each key.

To add a key to a group, add a line here and one in its yaml. New runs take the values of conf/, where every key must be
given; the defaults here are for saved configs that are older than a key (a test checks that both are equal). The
arguments of a node with `_target_` are checked against the signature of the target (samebits.targets.nodes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from lab.options import RULES, MonitorConfig, TrainerConfig
from samebits.process import EngineGroups
from samebits.schema import Rule, Share, option
from samebits.sweeps import SweepConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The keys of `data` that the run reads. All other keys are arguments of the data set."""

    input_shape: list[int]
    num_outputs: Annotated[int, Rule(at_least=1)]
    order: dict[str, Any]
    split_ratio: str | None = None
    split_by: str = "random"
    overfit: Annotated[int | None, Rule(at_least=1)] = None
    transforms: dict[str, Any] = field(default_factory=dict)
    loader: Annotated[str, option("auto", "threads", "workers", "device")] = "auto"
    num_workers: Annotated[int | str, Rule(words=("auto",), at_least=0, at_most=1024)] = "auto"


def mixed_parts(data: Any) -> Mapping[str, Any]:
    """Return `data.parts`, {name: node}; {} if the data set has no parts."""
    parts = data.get("parts")
    nodes = isinstance(parts, Mapping) and all(
        isinstance(node, Mapping) and "_target_" in node for node in parts.values()
    )
    return parts if nodes else {}


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The keys of `optim` that the run reads. All other keys are arguments of the optimizer."""

    schedule: dict[str, Any]
    decay_norms_and_biases: bool = False
    lr_factors: dict[str, float] = field(default_factory=dict)
    objectives: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The keys of an entry of `optim.objectives` that the run reads. Missing ones are taken from `optim`
    (lab.objective_optim). All other keys are arguments of its optimizer."""

    schedule: dict[str, Any]
    decay_norms_and_biases: bool = False
    lr_factors: dict[str, float] = field(default_factory=dict)
    clip_norm: Annotated[float | None, Rule(above=0)]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The key of `task` that the run reads. All other keys are arguments of the task."""

    _target_: str = "lab.tasks.supervised.Supervised"  # for runs that are older than tasks


@dataclass(frozen=True, kw_only=True)
class PruningConfig:
    """Magnitude pruning with a schedule: lab.pruning."""

    sparsity: Annotated[float | None, Rule(at_least=0, below=1)] = None
    start: Share = 0.0
    end: Share = 0.75
    every: Annotated[int | None, Rule(at_least=1)] = None
    scope: Annotated[str, option("layer", "model")] = "layer"
    exclude: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """Quantization-aware training: lab.quantization."""

    weight_bits: Annotated[int | None, Rule(at_least=2, at_most=8)] = None
    activation_bits: Annotated[int | None, Rule(at_least=2, at_most=8)] = None
    exclude: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RootConfig(EngineGroups):
    """The whole config: the groups of samebits and these."""

    name: str
    seed: Annotated[int, Rule(at_least=0, below=2**32)] = 0
    rules: Annotated[int, Rule(at_least=1, at_most=RULES)] = 1
    resume: str | None = None
    sweep: SweepConfig = field(default_factory=SweepConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    pruning: PruningConfig = field(default_factory=PruningConfig)
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
    data: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]
    optim: dict[str, Any]
    trainer: TrainerConfig
    callback: dict[str, Any] = field(default_factory=dict)
