"""The schemas of the config groups `trainer` and `monitor`, which the loop reads; lab.groups has the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from samebits.parallel import DDPConfig, FsdpConfig
from samebits.schema import Rule, option

# Version of the rules that affect results. A run keeps the version that it began with, so that it resumes bit for bit.
# 1: version 0.2 and earlier (also runs without the key `rules`)
# 2: each split has its own random numbers; modules that the model puts in evaluation mode stay in it; schedules end at
#    a rate > 0; weights are averaged after on_step_end; batches of `collate` are not padded; intervals may be fractions
# 3: version 0.3: random shares of more than 1,024 rows are chosen without an array of all rows (h5rows.row_sets)
# 4: evaluations draw their own random numbers, the same each time, so that they do not change the training
RULES = 4

Interval = Annotated[int | str | None, Rule(at_least=1, interval=True)]


@dataclass(frozen=True)
class MonitorConfig:
    """The score by which the best checkpoint of a run, and the best run of a sweep, are chosen."""

    key: str = "val/loss"
    mode: Annotated[str, option("min", "max")] = "min"


@dataclass(frozen=True)
class TrainerConfig:
    """The options of the training loop; conf/trainer/single.yaml explains them."""

    strategy: Annotated[str, option("single", "ddp", "dp", "fsdp")] = "single"
    max_epochs: Annotated[float | None, Rule(above=0, at_most=10**9)] = 20
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
