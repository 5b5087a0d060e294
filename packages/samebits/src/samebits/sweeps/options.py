"""Options of a multirun: the config group `sweep`, and the options of this project's launchers and sweepers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from samebits.schema import Rule


@dataclass(frozen=True)
class SweepConfig:
    """The config group `sweep`; conf/train.yaml explains the keys."""

    name: str | None = None
    retry_failed: bool = False
    fail_fast: bool = False
    zip: list[str | list[str]] | None = None
    job: str | None = None


@dataclass(frozen=True)
class PoolConfig:
    """The config hydra.launcher of hydra/launcher=pool."""

    jobs_at_once: Annotated[int | str, Rule(words=("auto",), at_least=1)]
    gpus_per_job: Annotated[float | str, Rule(words=("auto",), above=0)]


@dataclass(frozen=True)
class SearchConfig:
    """The config hydra.sweeper of hydra/sweeper=optuna."""

    n_trials: Annotated[int, Rule(at_least=1)]
    n_jobs: Annotated[int | None, Rule(at_least=1)]
    seed: Annotated[int, Rule(at_least=0, below=2**32)]
    objectives: dict[str, str] | None
    params: dict[str, Any] | None
    storage: str | None
    study: str | None
    sampler: dict[str, Any]
    pruner: dict[str, Any]


@dataclass(frozen=True)
class SlurmConfig:
    """The config hydra.launcher of hydra/launcher=slurm."""

    detach: bool
    jobs_at_once: Annotated[int, Rule(at_least=1)]
    timeout_min: Annotated[int, Rule(at_least=1)]
    signal_delay_s: Annotated[int, Rule(at_least=1)]
    max_num_timeout: Annotated[int, Rule(at_least=0)]
    nodes: Annotated[int, Rule(at_least=1)]
    tasks_per_node: Annotated[int, Rule(at_least=1)]
    gpus_per_node: Annotated[int | None, Rule(at_least=1)]
    cpus_per_task: Annotated[int | None, Rule(at_least=1)]
    mem: str | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    setup: list[str] | None
    additional_parameters: dict[str, Any]


@dataclass(frozen=True)
class RayConfig:
    """The config hydra.launcher of hydra/launcher=ray."""

    address: str | None
    jobs_at_once: Annotated[int, Rule(at_least=1)]
    cpus_per_job: Annotated[int, Rule(at_least=1)]
    gpus_per_job: Annotated[float | str, Rule(words=("auto",), at_least=0)]
    max_retries: Annotated[int, Rule(at_least=0)]
    resources: dict[str, float]
