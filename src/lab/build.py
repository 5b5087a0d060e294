"""Build what the config names. What it builds never sees the config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.optim import Optimizer

from engine.config.construct import construct, constructing, of_kind
from engine.data.loader import Loader
from engine.data.loading.samples import check_indexed
from engine.data.order import EvalPlan, Plan, TrainPlan
from engine.errors import RunFailed
from engine.ranks import blocks, hardware
from engine.ranks.cores import cores_each
from engine.ranks.distributed import World, local_ranks
from engine.ranks.fsdp import explained, is_sharded, shard
from engine.ranks.hardware import Hardware
from lab.callbacks.base import Callback
from lab.checks import check_criterion
from lab.groups import (
    DataConfig,
    HardwareConfig,
    LoggerConfig,
    MonitorConfig,
    OptimConfig,
    TrainerConfig,
    split_own,
    typed,
)
from lab.optim import Schedule, build_optimizer, lean_step
from lab.state import StepSettings, Task, TrainState, moving_average
from lab.transforms.fields import compose


@dataclass(frozen=True)
class Config:
    """config.yaml, split into what the run reads itself and what it builds."""

    cfg: DictConfig
    data: DataConfig
    dataset: dict[str, Any]
    optim: OptimConfig
    optimizer: dict[str, Any]
    trainer: TrainerConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    monitor: MonitorConfig

    @staticmethod
    def of(cfg: DictConfig) -> Config:
        data, dataset = split_own(cfg.data, DataConfig, "data")
        optim, optimizer = split_own(cfg.optim, OptimConfig, "optim")
        trainer, machine = typed(TrainerConfig, cfg.trainer, "trainer"), typed(HardwareConfig, cfg.hardware, "hardware")
        logger, monitor = typed(LoggerConfig, cfg.logger, "logger"), typed(MonitorConfig, cfg.monitor, "monitor")
        return Config(cfg, data, dataset, optim, optimizer, trainer, machine, logger, monitor)


def make_model(config: Config) -> nn.Module:
    return construct("model", config.cfg.model, nn.Module)


def make_callbacks(config: Config) -> list[Callback]:
    return [construct(f"callback.{name}", node, Callback) for name, node in config.cfg.callback.items()]


def make_dataset(node: dict[str, Any], split: str) -> Any:
    """The dataset of a split; None where the config gives the split no place (splits.val: null)."""
    if "splits" in node and node["splits"].get(split) is None:
        return None
    dataset = construct("data", node, object, split=split)
    check_indexed(dataset)
    return dataset


def make_train_loader(config: Config, machine: Hardware, dataset: Any, world: World, start: int) -> Loader:
    """start: the global sample number that comes next."""
    node = config.data.order
    make = construct("data.order", node)
    with constructing("data.order", node):
        order = of_kind("data.order", node, make(dataset, seed=config.cfg.seed), None)
    micro = machine.micro_batch_sizes
    plan = TrainPlan(order, config.trainer.global_batch_size, micro, world.rank, world.size, start)
    return _loader(config, dataset, plan, world, random=True)


def make_eval_loader(
    config: Config, machine: Hardware, dataset: Any, world: World, train: Loader | None = None
) -> Loader | None:
    """Every sample of the set (or of so many as trainer.max_eval_batches says, spread over it) once, over all ranks."""
    if dataset is None:
        return None
    limit = config.trainer.max_eval_batches
    # in the algorithm's batches: what is scored does not depend on the hardware
    count = None if limit is None else limit * config.trainer.global_batch_size
    # fsdp's forward pass gathers weights: all ranks go through it together
    in_step = config.trainer.eval_in_step or config.trainer.strategy == "fsdp"
    plan = EvalPlan(len(dataset), machine.eval_batch_size, world.rank, world.size, in_step, count)
    return _loader(config, dataset, plan, world, random=False, like=train)


def _loader(config: Config, dataset: Any, plan: Plan, world: World, random: bool, like: Loader | None = None) -> Loader:
    """random: with the transforms that draw numbers too."""
    own, given = config.data, config.hardware.num_threads
    transforms = [construct(f"data.transforms.{name}", node) for name, node in own.transforms.items()]
    transform = compose(transforms, training=random)
    cores = min(int(given), cores_each(local_ranks())) if given != "auto" else None
    return Loader(
        dataset, plan, world.device, transform, own.loader, own.num_workers, seed=config.cfg.seed, cores=cores,
        like=like,
    )  # fmt: skip


def make_task(config: Config, device: torch.device) -> Task:
    task = config.cfg.task
    criterion = construct("task.criterion", task.criterion)
    metrics = {name: construct(f"task.metrics.{name}", node) for name, node in task.metrics.items()}
    check_criterion(criterion)
    return Task(criterion.to(device) if isinstance(criterion, nn.Module) else criterion, metrics)


def place(model: nn.Module, config: Config, machine: Hardware, world: World) -> None:
    """Move the model to its device; with trainer=fsdp and several ranks, each rank's part to each rank's."""
    options = config.trainer.fsdp if config.trainer.strategy == "fsdp" else None
    if options is None:
        model.to(world.device)
    else:
        shard(model, options, machine.precision, world, config.hardware.compile)


def count_steps(trainer: TrainerConfig, num_samples: int, step: int = 0, samples: int = 0) -> int:
    """Optimizer steps of the whole run; num_samples: of an epoch.

    step, samples: what is done, perhaps in batches of another size. Epochs are counted in samples.
    """
    limits = [trainer.max_steps]
    if trainer.max_epochs:
        batch = trainer.global_batch_size
        ahead = step - samples / batch  # 0 unless the batch had another size: rounded as for a run from its start
        limits.append(max(1, round(trainer.max_epochs * (num_samples / batch) + ahead)))
    return min(limit for limit in limits if limit)


def make_state(
    config: Config, machine: Hardware, model: nn.Module, total_steps: int, world: World
) -> tuple[TrainState, StepSettings]:
    """model: whole, on the host; it is moved to the device, or its parts to their ranks, in place."""
    trainer, own = config.trainer, config.optim
    ema = moving_average(model) if trainer.ema_decay else None
    if again := config.hardware.activation_checkpointing:
        key = "hardware.activation_checkpointing"
        blocks.checkpoint_activations(blocks.find(model, again, key).values(), config.hardware.compile)
    for part in (model, ema):
        if part is not None:
            place(part, config, machine, world)
    weight_decay = config.optimizer.get("weight_decay", 0.0)
    make = construct("optim", config.optimizer)
    with constructing("optim", config.optimizer):
        optimizer = build_optimizer(make, model, weight_decay, own.decay_norms_and_biases)
        of_kind("optim", config.optimizer, optimizer, Optimizer)
    factor = construct("optim.schedule", own.schedule)
    with constructing("optim.schedule", own.schedule):
        schedule = Schedule(optimizer, factor, total_steps)
    state = TrainState(model, ema, optimizer, schedule, hardware.scaler(machine))
    update: Callable[[], Any] = optimizer.step if config.hardware.compile else lean_step(optimizer)
    if is_sharded(model):
        update = explained(update, f"optim: {type(optimizer).__name__} cannot update sharded weights", RunFailed)
    settings = StepSettings(
        local_batch_size=sum(machine.micro_batch_sizes),
        num_parameters=sum(len(group["params"]) for group in optimizer.param_groups),
        micro_batch_sizes=machine.micro_batch_sizes,
        clip_norm=trainer.clip_norm,
        skip_non_finite=trainer.non_finite == "skip",
        ema_decay=trainer.ema_decay,
        autocast=hardware.autocast(machine),
        update=update,
        guarded=bool(optimizer.defaults.get("fused")),
    )
    return state, settings
