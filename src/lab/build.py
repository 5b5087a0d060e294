"""Build the objects that the config names. They get values, never the config itself."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from engine.config.construct import construct, constructing, of_kind
from engine.config.schema import plain
from engine.config.targets import locate
from engine.data.loader import Loader
from engine.data.loading.samples import check_indexed
from engine.data.order import EvalPlan, Plan, TrainPlan
from engine.data.stream import Stream, is_stream
from engine.errors import ConfigError
from engine.ranks import blocks, hardware
from engine.ranks.cores import cores_each
from engine.ranks.ddp import wrap
from engine.ranks.distributed import World, local_ranks
from engine.ranks.dynamo import compiled
from engine.ranks.fsdp import is_sharded, shard
from engine.ranks.hardware import Hardware
from engine.runs.logger import Logger
from lab.callbacks.base import Callback
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
from lab.loop import Objective, only
from lab.optim import Named, Schedule, build_optimizer, largest, parameter_groups, trainable
from lab.state import Optimizers, TrainState, moving_average
from lab.tasks.base import Batch, Task
from lab.transforms.fields import compose


@dataclass(frozen=True)
class Config:
    """config.yaml as typed groups, and the nodes to be built (dataset, optimizer) without the run's own keys."""

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


def make_dataset(config: Config, split: str) -> Any:
    """Returns the dataset of a split; None if the config has null for it (splits.val: null)."""
    node, trainer = config.dataset, config.trainer
    if "splits" in node and node["splits"].get(split) is None:
        return None
    dataset = construct("data", node, object, split=split)
    if not is_stream(dataset):
        check_indexed(dataset)
        return dataset
    if split == "train":
        return Stream(dataset)
    if trainer.max_eval_batches is None:
        raise ConfigError(
            f"data: {type(dataset).__name__} is a stream, for {split} too: trainer.max_eval_batches says how much of "
            "it is scored"
        )
    return Stream(dataset, trainer.max_eval_batches * trainer.global_batch_size)


def check_stream(config: Config) -> None:
    """Refuse data.order and epochs for a stream: it has neither an index nor a length."""
    trainer, order = config.trainer, config.data.order.get("_target_")
    if order != "engine.data.order.sequential":
        raise ConfigError(
            f"data.order: a stream comes in its own order, so not in that of {order} - use "
            "data.order._target_=engine.data.order.sequential"
        )
    keys = ("log_every", "eval_every", "save_every")
    wrong = [f"trainer.{key}={getattr(trainer, key)}" for key in keys if isinstance(getattr(trainer, key), str)]
    if trainer.max_steps is None:
        wrong.insert(0, "trainer.max_steps=null")
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: a stream has no length, so no epochs - give steps")


def make_datasets(config: Config) -> dict[str, Any]:
    """Returns {split: dataset} for all splits that are not null; train is required."""
    splits = [*dict.fromkeys(["train", "val", "test", *(config.dataset.get("splits") or ())])]
    sets = {split: dataset for split in splits if (dataset := make_dataset(config, split)) is not None}
    if "train" not in sets:
        raise ConfigError("data.splits.train=null: there is nothing to train on; name the group that holds the split")
    if isinstance(sets["train"], Stream):
        check_stream(config)
    return sets


def make_train_loader(config: Config, machine: Hardware, dataset: Any, world: World, start: int) -> Loader:
    """start: global sample number to begin with, 0 for a new run."""
    node = config.data.order
    make = construct("data.order", node)
    with constructing("data.order", node):
        order = of_kind("data.order", node, make(dataset, seed=config.cfg.seed), None)
    micro = machine.micro_batch_sizes
    plan = TrainPlan(order, config.trainer.global_batch_size, micro, world.rank, world.size, start)
    return _loader(config, dataset, plan, world, random=True)


def make_eval_loader(
    config: Config, machine: Hardware, dataset: Any, world: World, train: Loader | None = None
) -> Loader:
    """Each sample of the set, or of trainer.max_eval_batches batches spread evenly over it, once over all ranks."""
    limit = config.trainer.max_eval_batches
    # counted in global batches, so that the scored samples do not depend on the hardware
    count = None if limit is None else limit * config.trainer.global_batch_size
    # FSDP all-gathers weights in forward, some tasks all-gather outputs: all ranks need equally many batches
    in_step = config.trainer.eval_in_step or config.trainer.strategy == "fsdp"
    in_step = in_step or task_class(config).across_samples
    plan = EvalPlan(len(dataset), machine.eval_batch_size, world.rank, world.size, in_step, count)
    return _loader(config, dataset, plan, world, random=False, like=train)


def _loader(config: Config, dataset: Any, plan: Plan, world: World, random: bool, like: Loader | None = None) -> Loader:
    """random: include random transforms (augmentation)."""
    own, given = config.data, config.hardware.num_threads
    transforms = [construct(f"data.transforms.{name}", node) for name, node in own.transforms.items()]
    if task_class(config).numbered:
        transforms.append(add_numbers)
    transform = compose(transforms, training=random)
    cores = min(int(given), cores_each(local_ranks())) if given != "auto" else None
    return Loader(
        dataset, plan, world.device, transform, own.loader, own.num_workers, seed=config.cfg.seed, cores=cores,
        like=like,
    )  # fmt: skip


def add_numbers(batch: Batch, numbers: Tensor) -> Batch:
    return {**batch, "number": numbers}


def make_method(config: Config, machine: Hardware, begins: bool, logger: Logger) -> tuple[nn.Module, Task]:
    """Returns (model, task), on the CPU. begins: True for a new run, False if a checkpoint will be loaded."""
    model, task = make_model(config), make_task(config)
    if task.across_samples and (len(machine.micro_batch_sizes) > 1 or config.trainer.strategy == "dp"):
        dp = config.trainer.strategy == "dp"
        key = "trainer=dp" if dp else f"hardware.micro_batch_size={config.hardware.micro_batch_size}"
        raise ConfigError(
            f"{key}: {type(task).__name__} compares the samples of a whole batch with each other, so they must be on "
            f"the devices at once - use {'trainer=ddp' if dp else 'null, or more ranks'}"
        )
    check_task(task, model)
    with constructing("task", config.cfg.task):
        if begins and (line := task.initialize(model)):
            logger.say(line)
        task.attach(model)
    return model, task


def check_task(task: Task, model: nn.Module) -> None:
    """What a task promises by its methods and names, before a batch is read."""
    kind = type(task).__name__
    twice = [name for name in task.metrics if name in ("loss", *task.terms)]
    if twice:
        raise ConfigError(f"task.metrics.{twice[0]}: {kind} has a loss of this name - choose another for the metric")
    for objective in task.trained(model):
        if objective and not callable(getattr(task, f"{objective}_losses", None)):
            raise ConfigError(f"task: {kind}.trained names {objective!r}, so {kind} needs a {objective}_losses")


def make_task(config: Config) -> Task:
    node = plain(config.cfg.task)
    task_class(config)
    inner = {name: _built(f"task.{name}", value) for name, value in node.items()}  # an error names the inner node
    inner = {name: value for name, value in inner.items() if value is not node[name]}
    outer = {name: value for name, value in node.items() if name not in inner} | {"_partial_": True}
    make = construct("task", outer)
    with constructing("task", node):
        task: Task = of_kind("task", node, make(**inner), Task)
    if "_modules" not in vars(task):
        raise ConfigError(f"task: the __init__ of {type(task).__name__} must begin with super().__init__()")
    return task


def task_class(config: Config) -> type[Task]:
    """Returns the class that the config's `task` names; a function is refused, as its result is unknown here."""
    path = config.cfg.task.get("_target_")
    found = locate(path, "task")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise ConfigError(f"task._target_: {path} is not a subclass of lab.tasks.base.Task")
    return found


def _built(key: str, node: Any) -> Any:
    """Build a node that has a _target_, also inside a list or dict; anything else is returned as the same object."""
    if isinstance(node, dict) and "_target_" in node:
        return construct(key, node, object)
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    built = {name: _built(f"{key}.{name}", value) for name, value in items}
    if all(built[name] is value for name, value in items):
        return node
    return built if isinstance(node, dict) else list(built.values())


def to_devices(model: nn.Module, config: Config, machine: Hardware, world: World) -> None:
    """Move the model to the device, in place; with trainer=fsdp and several ranks, shard it over their devices."""
    options = config.trainer.fsdp if config.trainer.strategy == "fsdp" else None
    if options is None:
        model.to(world.device)
    else:
        shard(model, options, machine.precision, world, config.hardware.compile)


def count_steps(trainer: TrainerConfig, num_samples: int, step: int = 0, samples: int = 0) -> int:
    """Returns the optimizer steps of the whole run. num_samples: samples of one epoch.

    step, samples: done before a resume, perhaps with another batch size. Epochs are counted in samples.
    """
    limits = [trainer.max_steps]
    if trainer.max_epochs:
        batch = trainer.global_batch_size
        ahead = step - samples / batch  # 0 unless the batch size was changed: then rounding is that of a fresh run
        limits.append(max(1, round(trainer.max_epochs * (num_samples / batch) + ahead)))
    return min(limit for limit in limits if limit)


def make_state(
    config: Config, machine: Hardware, model: nn.Module, task: Task, total_steps: int, world: World
) -> TrainState:
    """model, task: unsharded, on the CPU; moved to the device, or the model sharded over the ranks, in place."""
    trainer, own = config.trainer, config.optim
    ema = moving_average(model) if trainer.ema_decay else None
    if again := config.hardware.activation_checkpointing:
        key = "hardware.activation_checkpointing"
        blocks.checkpoint_activations(blocks.find(model, again, key).values(), config.hardware.compile)
    for part in (model, ema):
        if part is not None:
            to_devices(part, config, machine, world)
    if is_sharded(model) and (held := next((name for name, _ in task.named_parameters()), None)):
        raise ConfigError(
            f"trainer=fsdp: {type(task).__name__} holds parameters beside the model ({held}), and only the model is "
            "cut over the ranks - use trainer=ddp"
        )
    task.to(world.device)
    optimizers = Optimizers()
    trained = {
        objective: trainable(("" if m is model else "task." if m is task else f"{objective}.", m) for m in modules)
        for objective, modules in task.trained(model).items()
    }
    for objective, named in trained.items():
        others = [name for other in trained if other != objective for name, _ in trained[other]]
        optimizers[objective] = make_optimizer(config, named, objective or type(model).__name__, others)
    optimizer = optimizers[""] if list(optimizers) == [""] else optimizers
    factor = construct("optim.schedule", own.schedule)
    with constructing("optim.schedule", own.schedule):
        schedule = Schedule(optimizer, factor, total_steps)
    return TrainState(model, task, ema, optimizer, schedule, hardware.scaler(machine))


def make_optimizer(config: Config, named: Named, whose: str, others: Sequence[str] = ()) -> Optimizer:
    """named: the parameters to train. whose: the owner's name, for messages. others: other optimizers' parameters."""
    own = config.optim
    if not named:
        raise ConfigError(f"model: {whose} has no parameters that require a gradient: nothing to train")
    decay = largest(config.optimizer, "weight_decay")
    make = construct("optim", config.optimizer)
    with constructing("optim", config.optimizer):
        optimizer = build_optimizer(
            make, lambda: parameter_groups(named, decay, own.decay_norms_and_biases, own.lr_factors, others)
        )
        return of_kind("optim", config.optimizer, optimizer, Optimizer)


def make_nets(config: Config, state: TrainState, world: World) -> dict[str, nn.Module]:
    """Returns {objective: module called with a batch}, wrapped by DDP and torch.compile as the config says."""
    nets: dict[str, nn.Module] = {}
    for objective in state.task.trained(state.model):
        net: nn.Module = Objective(state.model, state.task, objective)
        if not is_sharded(state.model):  # FSDP models are sharded and compiled block by block already
            with only(state.optimizer_of(objective), state) if objective else nullcontext():
                net = wrap(net, world, config.trainer)
            net = compiled(net, config.hardware) if config.hardware.compile else net
        nets[objective] = net
    return nets
