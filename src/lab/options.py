"""The schemas of the groups `trainer` and `monitor`, which the loop reads; see lab.groups for the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from samebits.parallel import DDPConfig, FsdpConfig
from samebits.schema import Rule, option

# Versions of the rules that decide a run's bits. A saved run keeps its own; one from before this key has 1.
# 1: until 0.2
# 2: since 0.3. Each split draws its own random numbers; what a model holds in evaluation mode stays in it; weights
#    enter their average after Task.on_step_end; every step of a schedule trains; batches of an own collate are not padded
RULES = 2

Interval = Annotated[int | str | None, Rule(at_least=1, interval=True)]


@dataclass(frozen=True)
class MonitorConfig:
    """The score that says which of a run's checkpoints, and which run, is best."""

    key: str = "val/loss"
    mode: Annotated[str, option("min", "max")] = "min"


@dataclass(frozen=True)
class TrainerConfig:
    strategy: Annotated[str, option("single", "ddp", "dp", "fsdp")] = "single"
    max_epochs: Annotated[float | None, Rule(above=0)] = 20
    max_steps: Annotated[int | None, Rule(at_least=0)] = None
    global_batch_size: Annotated[int, Rule(at_least=1)] = 64
    clip_norm: Annotated[float | None, Rule(above=0)] = 1.0
    non_finite: Annotated[str, option("stop", "skip")] = "stop"
    ema_decay: Annotated[float | None, Rule(above=0, below=1)] = None
    log_every: Interval = 50
    eval_every: Interval = "1ep"
    save_every: Interval = "1ep"
    keep_best: Annotated[int, Rule(at_least=0)] = 1
    early_stop_patience: Annotated[int | None, Rule(at_least=1)] = None
    max_eval_batches: Annotated[int | None, Rule(at_least=1)] = None
    pad_eval_batches: bool = False
    sync_batchnorm: bool = False
    ddp: DDPConfig = field(default_factory=DDPConfig)
    fsdp: FsdpConfig | None = None
