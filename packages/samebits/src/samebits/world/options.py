"""Options of a run's processes: the config group `process`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from samebits.schema import Rule

Duration = Annotated[float | str | None, Rule(above=0, duration=True)]


@dataclass(frozen=True)
class ProcessConfig:
    """The config group `process`; conf/train.yaml explains the keys."""

    max_time: Duration = None
    stop_at_step: Annotated[int | None, Rule(at_least=1)] = None
    timeout: Duration = "10m"
    max_restarts: Annotated[int, Rule(at_least=0)] = 0
    straggler_threshold: Annotated[float | None, Rule(above=0)] = 0.2
    save_async: bool = True
