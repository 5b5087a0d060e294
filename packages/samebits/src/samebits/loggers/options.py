"""The schema of the config group `logger`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from samebits.schema import Rule, option


@dataclass(frozen=True)
class MLflowConfig:
    """tracking_uri: a server, or a folder (file:/...). experiment: created if it does not exist."""

    tracking_uri: str | None = None
    experiment: str = "default"


@dataclass(frozen=True)
class LoggerConfig:
    """kind: whether to use W&B. All options except the last three (tensorboard, csv, mlflow) are for W&B."""

    kind: Annotated[str, option("wandb", "none")] = "wandb"
    project: str = "default"
    entity: str | None = None
    group: str | None = None
    run_name: str | None = None
    job_type: str = "train"
    tags: list[str] = field(default_factory=list)
    mode: Annotated[str, option("auto", "online", "offline")] = "auto"
    timeout_s: Annotated[float, Rule(above=0)] = 20
    artifact: bool = False
    tensorboard: bool = False
    csv: bool = False
    mlflow: MLflowConfig | None = None
