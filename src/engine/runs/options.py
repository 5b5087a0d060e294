"""The schema of the config group `logger`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from engine.config.schema import Rule, option


@dataclass(frozen=True)
class LoggerConfig:
    kind: Annotated[str, option("wandb", "none")] = "wandb"
    project: str = "default"
    entity: str | None = None
    group: str | None = None
    job_type: str = "train"
    tags: list[str] = field(default_factory=list)
    mode: Annotated[str, option("auto", "online", "offline")] = "auto"
    timeout_s: Annotated[float, Rule(above=0)] = 20
    artifact: bool = False
