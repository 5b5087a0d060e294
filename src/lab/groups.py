"""The config's schemas, and the checks made before anything is built.

The schemas give names, types and options. Their defaults are for saved configs that are older than a key; a new run
takes its values from conf/, where every key must be given (a test keeps both equal). To add a value to a group, add a
line here and one in its yaml. A node with a `_target_` is checked against that signature (engine.config.targets).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import getitem
from typing import Annotated, Any

from engine.config import (
    Rule,
    below_outputs,
    check_fit,
    check_targets,
    complete,
    did_you_mean,
    locate,
    option,
    plain,
    regex,
    show,
    split_own,
    typed,
)
from engine.errors import ConfigError
from engine.profiling import ProfilerConfig
from engine.ranks import ATTENTION, CUDA_GRAPHS, ONE_PROCESS, DDPConfig, FsdpConfig, HardwareConfig, check_share
from engine.runs import LoggerConfig, check_installed
from engine.sweeps import SweepConfig

__all__ = ["check", "split_own", "typed"]


Interval = Annotated[int | str | None, Rule(at_least=1, interval=True)]
Duration = Annotated[float | str | None, Rule(above=0, duration=True)]


@dataclass(frozen=True)
class TrainerConfig:
    strategy: Annotated[str, option("single", "ddp", "dp", "fsdp")] = "single"
    max_epochs: Annotated[float | None, Rule(above=0)] = 20
    max_steps: Annotated[int | None, Rule(at_least=1)] = None
    global_batch_size: Annotated[int, Rule(at_least=1)] = 64
    clip_norm: Annotated[float | None, Rule(above=0)] = 1.0
    non_finite: Annotated[str, option("stop", "skip")] = "stop"
    ema_decay: Annotated[float | None, Rule(above=0, below=1)] = None
    log_every: Interval = 50
    eval_every: Interval = "1ep"
    save_every: Interval = "1ep"
    save_async: bool = True
    keep_best: Annotated[int, Rule(at_least=0)] = 1
    early_stop_patience: Annotated[int | None, Rule(at_least=1)] = None
    max_eval_batches: Annotated[int | None, Rule(at_least=1)] = None
    eval_in_step: bool = False
    max_time: Duration = None
    stop_at_step: Annotated[int | None, Rule(at_least=1)] = None
    timeout: Duration = "10m"
    max_restarts: Annotated[int, Rule(at_least=0)] = 0
    straggler_share: Annotated[float | None, Rule(above=0)] = 0.2
    sync_batchnorm: bool = False
    ddp: DDPConfig = field(default_factory=DDPConfig)
    fsdp: FsdpConfig | None = None


@dataclass(frozen=True)
class MonitorConfig:
    key: str = "val/loss"
    mode: Annotated[str, option("min", "max")] = "min"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The run's own keys in `data`; all others are arguments of the dataset."""

    input_shape: list[int]
    num_outputs: Annotated[int, Rule(at_least=1)]
    order: dict[str, Any]
    transforms: dict[str, Any] = field(default_factory=dict)
    loader: Annotated[str, option("auto", "threads", "workers", "device")] = "auto"
    num_workers: Annotated[int | str, Rule(words=("auto",), at_least=0)] = "auto"


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
class RootConfig:
    name: str
    seed: Annotated[int, Rule(at_least=0, below=2**32)] = 0
    resume: str | None = None
    sweep: SweepConfig = field(default_factory=SweepConfig)
    monitor: MonitorConfig = MonitorConfig()
    data: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]
    optim: dict[str, Any]
    trainer: TrainerConfig
    hardware: HardwareConfig
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    callback: dict[str, Any] = field(default_factory=dict)


# What a yaml may name as _target_, so that somebody else's config cannot call arbitrary functions (torch.hub.load,
# os.system, engine.files.replace_text). To use another library, add its prefix here ("timm.*": the public classes and
# functions that it defines), or one full name ("transformers.AutoModel.from_pretrained").
TARGETS_ALLOWED = (
    "lab.models.*",
    "lab.datasets.*",
    "lab.transforms.*",
    "engine.data.h5.*",
    "engine.data.order.*",
    "engine.data.sampling.*",
    "engine.data.windows.*",
    "lab.losses.*",
    "lab.metrics.*",
    "lab.tasks.*",
    "lab.callbacks.*",
    "lab.optimizers.*",
    "lab.schedules.*",
    "torch.nn.*",
    "torch.optim.*",
    "torchmetrics.*",
)
# Functions that may be called with a config's values alone. Functions of lab's other folders need _partial_: true: the
# run calls them with objects of its own.
FACTORIES = ("lab.models.*",)

# {import path in older versions: import path now}, as saved configs have the old ones
MOVED = {
    "lab.data.h5.": "engine.data.h5.",
    "lab.data.tokens.": "lab.datasets.tokens.",
    "lab.data.synthetic.": "lab.datasets.synthetic.",
    "lab.data.transforms.": "lab.transforms.fields.",
    "lab.data.mixup.": "lab.transforms.mixup.",
    "lab.data.order.": "engine.data.order.",
    "lab.data.windows.": "engine.data.windows.",
    "lab.data.sampling.": "engine.data.sampling.",
    "lab.optim.ByShape": "lab.optimizers.by_shape.ByShape",
    "lab.optim.Constant": "lab.schedules.constant.Constant",
    "lab.optim.Linear": "lab.schedules.linear.Linear",
    "lab.optim.Cosine": "lab.schedules.cosine.Cosine",
    "lab.optim.Step": "lab.schedules.step.Step",
    "lab.optim.Plateau": "lab.schedules.plateau.Plateau",
    "lab.": "lab.",  # in a fork of another name: runs from before it was named
}

PATHS = (
    "data.path",
    "data.parts.*.path",
    "resume",
    "task.weights",
    "model.folder",
    "model.model.folder",
)  # values that are paths: relative ones are relative to the working directory of the command

# nodes to build; nodes of which every entry is built; keys beside a _target_ that are the run's, not the target's
TARGETS = ("model", "data", "data.order", "optim", "optim.schedule", "task")
COLLECTIONS = ("data.transforms", "task.metrics", "callback")
OWN = {"data": DataConfig, "optim": OptimConfig, "task": TaskConfig}
OWN_KEYS = {group: tuple(f.name for f in fields(OWN[group])) for group in ("data", "optim")}
# arguments that the run adds when it builds these
GIVEN_BY_RUN = {
    "data": ("split",),
    "data.order": ("dataset", "seed"),
    "optim": ("params",),
}
# {parameter: the run's value}: what is built from the config has it if its class or function takes such a parameter,
# without a default, and its node does not give it
ASKED_OF_RUN = {"seed": "seed", "batch_size": "trainer.global_batch_size"}


def check(cfg: Any, trains: bool = True) -> None:
    """Raise a ConfigError on the first mistake in the whole, resolved config. Changes nothing. Imports torch last.

    trains: False for evaluate.py, which scores one split, of any name.
    """
    values = plain(cfg)
    for recipe in ("experiment", "debug"):
        if isinstance(values.get(recipe), list):
            raise ConfigError(
                f"{recipe}: its yaml holds a list; it must begin with '# @package _global_', and hold keys"
            )
        if isinstance(values.get(recipe), dict):
            raise ConfigError(f"{recipe}: its yaml must begin with '# @package _global_' to override the whole config")
    root = typed(RootConfig, values)
    data = split_own(root.data, DataConfig, "data")[0]
    optim = split_own(root.optim, OptimConfig, "optim")[0]
    for pattern, factor in optim.lr_factors.items():
        regex(pattern, "optim.lr_factors")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor < math.inf:
            raise ConfigError(
                f"optim.lr_factors: {pattern}: expected a factor of the learning rate, got {show(factor)}"
            )
    _check_combinations(root)
    if any(size < 1 for size in data.input_shape):
        raise ConfigError(f"data.input_shape: every size must be >= 1, got {data.input_shape}")
    below_outputs(root.name)
    if trains:
        check_installed(root.logger)
    if trains and isinstance(splits := root.data.get("splits"), dict):
        _check_splits(splits)
    check_fit(values, {key: GIVEN_BY_RUN[key] for key in ("data.order", "optim")})
    _check_parts(root.data)
    parts = parts_of(values)
    check_targets(
        values,
        (*TARGETS, *(f"{key}.order" for key in parts)),
        (*COLLECTIONS, *(f"{key}.transforms" for key in parts), *(["data.parts"] if parts else [])),
        OWN_KEYS | dict.fromkeys(parts, OWN_KEYS["data"]),
        given_by_run(parts),
        asked=asked_of_run(values),
    )
    _check_monitor(root.monitor, values)
    schedule = locate(optim.schedule["_target_"], "optim.schedule")
    if root.trainer.eval_every is None and hasattr(schedule, "scored"):
        raise ConfigError(
            f"optim.schedule: {schedule.__name__} follows {root.monitor.key}, but trainer.eval_every is null - give "
            "it (trainer.eval_every=20), or use optim/schedule=constant"
        )


def with_run_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of the whole, plain config in which each node that asks for a value of the run has it."""
    return complete(values, asked_of_run(values), given_by_run(parts_of(values)))  # type: ignore[no-any-return]


def asked_of_run(values: dict[str, Any]) -> dict[str, Any]:
    return {name: reduce(getitem, key.split("."), values) for name, key in ASKED_OF_RUN.items()}


def given_by_run(parts: list[str]) -> dict[str, tuple[str, ...]]:
    """GIVEN_BY_RUN, with the parts of data=mixed."""
    return GIVEN_BY_RUN | {key + end: GIVEN_BY_RUN[f"data{end}"] for key in parts for end in ("", ".order")}


def parts_of(values: dict[str, Any]) -> list[str]:
    """The keys of the parts of data=mixed, each a node as `data` is; [] of other data."""
    data = values["data"]
    parts = data.get("parts") if data.get("_target_") == "lab.datasets.mixed.Mixed" else None
    return [f"data.parts.{name}" for name in parts] if isinstance(parts, dict) else []


def share_evaluation(cfg: Any, num_procs: int) -> None:
    """Change the config, in place, to an evaluation by `num_procs` processes, however the run was trained."""
    cfg.hardware.num_procs = "auto" if num_procs == 1 else num_procs
    cfg.trainer.strategy, cfg.trainer.sync_batchnorm = "single" if num_procs == 1 else "ddp", False
    cfg.trainer.global_batch_size = -(-cfg.trainer.global_batch_size // num_procs) * num_procs
    for name, value in cfg.trainer.ddp.items():
        cfg.trainer.ddp[name] = False if isinstance(value, bool) else None


def _check_combinations(root: RootConfig) -> None:
    trainer, hardware = root.trainer, root.hardware
    compiling = f"hardware.compile={hardware.compile if isinstance(hardware.compile, str) else show(hardware.compile)}"
    if trainer.max_steps is None and trainer.max_epochs is None:
        raise ConfigError("trainer.max_steps, trainer.max_epochs: both are null - give one of them")
    if isinstance(hardware.num_procs, int):
        if trainer.strategy in ONE_PROCESS and hardware.num_procs > 1:
            raise ConfigError(
                f"hardware.num_procs: trainer={trainer.strategy} is one process, not {hardware.num_procs} - "
                "use trainer=ddp"
            )
        check_share(trainer.global_batch_size, hardware.num_procs)
    if trainer.strategy == "fsdp" and trainer.fsdp is None:
        raise ConfigError("trainer.strategy=fsdp: trainer.fsdp, which says how to shard, is null - use trainer=fsdp")
    if trainer.strategy == "fsdp" and hardware.device == "mps":
        raise ConfigError("trainer.strategy=fsdp: shards over CUDA devices or CPU processes, not mps - trainer=single")
    if trainer.strategy == "ddp" and hardware.device == "mps" and hardware.num_procs not in (1, "auto"):
        raise ConfigError("hardware.num_procs: a machine has one mps device - use hardware=cpu or trainer=single")
    if hardware.precision == "tf32" and hardware.device in ("cpu", "mps"):
        raise ConfigError(
            f"hardware.precision: tf32 is a mode of CUDA devices, not of {hardware.device} - use fp32, bf16 or fp16"
        )
    if trainer.strategy == "dp" and hardware.device in ("cpu", "mps"):
        raise ConfigError(f"trainer=dp: shares a batch among several GPUs, not on {hardware.device} - use trainer=ddp")
    if trainer.strategy == "dp" and hardware.compile:
        raise ConfigError(f"{compiling}: trainer=dp copies the model at each step - use trainer=ddp")
    if trainer.strategy == "fsdp" and hardware.compile in CUDA_GRAPHS:
        raise ConfigError(
            f"{compiling}: a CUDA graph cannot hold trainer=fsdp's collectives between the blocks - use default"
        )
    if hardware.deterministic and hardware.compile == "max-autotune":
        raise ConfigError(
            "hardware.compile=max-autotune: chooses kernels by their speed, so another run may round "
            "in another way - use default with hardware.deterministic=true"
        )
    if trainer.strategy == "fsdp" and hardware.channels_last:
        raise ConfigError("hardware.channels_last=true: trainer=fsdp shards weights in torch's order - leave it false")
    if hardware.precision == "bf16-weights" and trainer.strategy in ("dp", "fsdp"):
        other = "fsdp gathers its blocks in bf16 already" if trainer.strategy == "fsdp" else "dp makes its own copies"
        raise ConfigError(f"hardware.precision=bf16-weights: trainer={other} - use hardware.precision=bf16")
    if hardware.activation_checkpointing_keeps != "inputs" and not hardware.activation_checkpointing:
        raise ConfigError(
            f"hardware.activation_checkpointing_keeps={hardware.activation_checkpointing_keeps}: "
            "hardware.activation_checkpointing names no modules - give auto"
        )
    if hardware.activation_checkpointing_keeps == "matmuls" and hardware.precision == "bf16-weights":
        raise ConfigError(
            "hardware.activation_checkpointing_keeps=matmuls: its recomputation must see the weights of the forward "
            "pass, and the bf16 copies are gone by then - use hardware.precision=bf16, or keep inputs"
        )
    if wrong := next((name for name in hardware.attention if name not in ATTENTION), None):
        raise ConfigError(f"hardware.attention: no kernel {show(wrong)} - give {', '.join(ATTENTION)}, or []")
    if trainer.strategy == "dp" and hardware.activation_checkpointing:
        raise ConfigError(
            "hardware.activation_checkpointing: trainer=dp copies the model at each step - use trainer=ddp"
        )
    _check_ddp(trainer, hardware)
    if trainer.early_stop_patience is not None and trainer.eval_every is None:
        raise ConfigError("trainer.early_stop_patience: counts evaluations, but trainer.eval_every is null - give both")


def _check_parts(data: dict[str, Any]) -> None:
    for key in parts_of({"data": data}):
        node = data["parts"][key.removeprefix("data.parts.")]
        if not isinstance(node, dict) or "_target_" not in node:
            raise ConfigError(f"{key}: is no data set - choose one, +data@{key}=h5, or give its _target_")
        for own in ("loader", "num_workers"):
            if node.get(own, "auto") != "auto":
                raise ConfigError(f"{key}.{own}={node[own]}: the parts are read together - give data.{own}")
        order = node.get("order")
        if not isinstance(order, dict) or order.get("_partial_") is not True:
            raise ConfigError(f"{key}.order: give one, with _partial_: true, as in conf/data/h5.yaml")


def _check_splits(splits: dict[str, Any]) -> None:
    for name in (str(name) for name, node in splits.items() if node is not None):
        if not name.startswith(("train", "val", "test")) or "/" in name:
            raise ConfigError(
                f"data.splits.{name}: names of splits begin with train, val (scored during training) or test (scored "
                f"at the end), such as val_{name} - rename it, or set it to null"
            )


def _check_ddp(trainer: TrainerConfig, hardware: HardwareConfig) -> None:
    """Refuse DistributedDataParallel's options with other strategies, where they would have no effect."""
    options = trainer.ddp
    asked = {f"trainer.ddp.{f.name}": getattr(options, f.name) for f in fields(options)}
    asked["trainer.sync_batchnorm"] = trainer.sync_batchnorm
    for key, value in asked.items():
        if value not in (False, None) and trainer.strategy != "ddp":
            raise ConfigError(f"{key}={show(value)}: an option of trainer=ddp, not of {trainer.strategy}")
    if options.find_unused_parameters and options.static_graph:
        raise ConfigError(
            "trainer.ddp.find_unused_parameters=true: leave it false, trainer.ddp.static_graph=true finds them itself"
        )
    if hardware.compile and options.bucket_cap_mb is not None and options.bucket_cap_mb < 1:
        raise ConfigError(
            f"trainer.ddp.bucket_cap_mb={show(options.bucket_cap_mb)}: with hardware.compile torch's first bucket "
            "is 1 MB, and no other may be smaller - give 1 or more"
        )
    if options.comm_hook == "bf16" and hardware.device == "cpu":
        raise ConfigError("trainer.ddp.comm_hook=bf16: torch has it for CUDA only, not for cpu; fp16 works")
    if trainer.sync_batchnorm and hardware.device in ("cpu", "mps"):
        raise ConfigError(
            f"trainer.sync_batchnorm=true: torch's SyncBatchNorm runs on CUDA only, not on {hardware.device}"
        )


def score_names(values: dict[str, Any], *prefixes: str) -> list[str]:
    """Returns <split>/<name> of all scores, for the splits whose names begin with a prefix (val, val_hard, ...).

    values: the whole config as plain values. A metric with several scores also logs <split>/<metric>/<name>. Imports
    the task's class, so torch."""
    splits = values["data"].get("splits")
    known = [name for name, node in splits.items() if node is not None] if splits else ["val", "test"]
    task = values["task"]
    terms_of = getattr(locate(task["_target_"], "task"), "terms_of", lambda arguments: ())
    names = ["loss", *terms_of(task), *(task.get("metrics") or {})]
    return [f"{split}/{name}" for split in known if split.startswith(prefixes) for name in names]


def _check_monitor(monitor: MonitorConfig, values: dict[str, Any]) -> None:
    scores = score_names(values, "val") or score_names(values | {"data": {}}, "val")  # no val split: monitor is unused
    if monitor.key not in scores and not monitor.key.startswith(tuple(f"{score}/" for score in scores)):
        hint = did_you_mean(monitor.key, scores)
        raise ConfigError(f"monitor.key: no score {show(monitor.key)}{hint} (logged: {', '.join(scores)})")
