"""Build the objects that the config names. They get values, never the config itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from engine.config import construct, constructing, locate, of_kind, plain
from engine.data import (
    EvalPlan,
    LanePlan,
    Loader,
    Plan,
    StatefulOrder,
    Stream,
    TrainPlan,
    Transform,
    check_indexed,
    has_state,
    is_stream,
)
from engine.errors import ConfigError, first_line
from engine.host import cores_each
from engine.profiling import ProfilerConfig
from engine.ranks import (
    CompiledChain,
    DeviceSchedule,
    Hardware,
    Tape,
    Unrecorded,
    WithBf16Weights,
    World,
    allocate_model,
    can_skip,
    checkpoint_activations,
    class_name,
    compiled,
    copy_tensors,
    fill_model,
    find_blocks,
    in_channels_last,
    is_sharded,
    local_ranks,
    make_scaler,
    seed_everything,
    shard,
    tensors_of,
    wrap_net,
)
from engine.runs import Logger
from lab.callbacks.base import Callback
from lab.descend import only
from lab.frozen import provide_frozen
from lab.groups import (
    DataConfig,
    HardwareConfig,
    LoggerConfig,
    MonitorConfig,
    OptimConfig,
    TrainerConfig,
    split_own,
    typed,
    with_run_values,
)
from lab.objective import Objective
from lab.optim import Named, Schedule, build_optimizer, check_closure, largest, parameter_groups, trainable
from lab.state import Optimizers, TrainState, may_skip, moving_average
from lab.tasks.base import Batch, Task, TaskRun, overrides
from lab.transforms.fields import compose


@dataclass(frozen=True)
class Config:
    """config.yaml as typed groups, and the nodes to be built (dataset, optimizer) without the run's own keys.

    Nodes that ask for a value of the run (groups.ASKED_OF_RUN) have it here, and not in config.yaml."""

    cfg: DictConfig
    data: DataConfig
    dataset: dict[str, Any]
    optim: OptimConfig
    optimizer: dict[str, Any]
    trainer: TrainerConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    monitor: MonitorConfig
    profiler: ProfilerConfig

    @staticmethod
    def of(cfg: DictConfig) -> Config:
        cfg = OmegaConf.create(with_run_values(plain(cfg)))
        data, dataset = split_own(cfg.data, DataConfig, "data")
        optim, optimizer = split_own(cfg.optim, OptimConfig, "optim")
        trainer, machine = typed(TrainerConfig, cfg.trainer, "trainer"), typed(HardwareConfig, cfg.hardware, "hardware")
        logger, monitor = typed(LoggerConfig, cfg.logger, "logger"), typed(MonitorConfig, cfg.monitor, "monitor")
        profiler = typed(ProfilerConfig, cfg.profiler, "profiler")
        return Config(cfg, data, dataset, optim, optimizer, trainer, machine, logger, monitor, profiler)


def make_model(config: Config) -> nn.Module:
    model = construct("model", config.cfg.model, nn.Module)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"model: {name} has no size before the first batch, as a lazy module's: give the size, which "
                "data.input_shape and data.num_outputs say"
            )
    return model


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


def make_train_loader(
    config: Config,
    machine: Hardware,
    dataset: Any,
    world: World,
    start: int,
    saved: dict[str, Any] | None = None,
    random: bool = True,
) -> Loader:
    """start: global sample number to begin with, 0 for a new run. saved: the state of an order that has one. random:
    include random transforms (augmentation)."""
    node = config.data.order
    make = construct("data.order", node)

    def make_order() -> Any:
        with constructing("data.order", node):
            return of_kind("data.order", node, make(dataset, seed=config.cfg.seed), None)

    order = make_order()
    if task_class(config).carries and not hasattr(order, "mark"):
        raise ConfigError(
            f"data.order: {task_class(config).__name__} carries states from row to row, and {node['_target_']} has no "
            "lanes - use engine.data.order.lanes: docs/my_method.md, States that go on"
        )
    batch_size = config.trainer.global_batch_size
    if task_class(config).carries and config.cfg.task.get("lanes", batch_size) != batch_size:
        raise ConfigError(f"task.lanes={config.cfg.task.lanes}: must be trainer.global_batch_size={batch_size}")
    if has_state(order):
        order = StatefulOrder(make_order, saved)
    micro = machine.micro_batch_sizes
    plan = TrainPlan(order, batch_size, micro, world.rank, world.size, start)
    return _loader(config, dataset, "train", plan, world, random=random, mark=getattr(order, "mark", None))


def samples_of_epoch(train: Loader, dataset: Any, trainer: TrainerConfig, step: int = 0, samples: int = 0) -> int:
    """All of the training set, unless data.order leaves some out of each epoch (engine.data.order.epochs).

    step, samples: done before a resume."""
    count = getattr(train.plan, "epoch_samples", None)
    if count and step * trainer.global_batch_size != samples:
        raise ConfigError(
            f"trainer.global_batch_size={trainer.global_batch_size}: the run has trained {samples:,} samples in "
            f"{step:,} steps, and with this data.order epochs end with a batch, so its batch stays - begin a new run"
        )
    return count or len(dataset)


def make_eval_loader(
    config: Config,
    machine: Hardware,
    dataset: Any,
    split: str,
    world: World,
    train: Loader | None = None,
    whole: bool = False,
    rows: np.ndarray | None = None,
) -> Loader:
    """Each sample of the set, or of trainer.max_eval_batches batches spread evenly over it, once over all ranks.

    split: the set's name, for messages. whole: all samples, whatever trainer.max_eval_batches says. rows: (N,) int64,
    those that are meant, and batches have "row"; None: all."""
    limit = None if whole else config.trainer.max_eval_batches
    # counted in global batches, so that the scored samples do not depend on the hardware
    count = None if limit is None else limit * config.trainer.global_batch_size
    # FSDP all-gathers weights in forward, some tasks all-gather outputs: all ranks need equally many batches
    in_step = config.trainer.eval_in_step or config.trainer.strategy == "fsdp"
    in_step = in_step or task_class(config).across_samples
    full = machine.compile is not None and not isinstance(dataset, Stream)  # another shape would be compiled again
    common = (machine.eval_batch_size, world.rank, world.size, in_step, count, full)
    if task_class(config).carries:
        in_lanes = LanePlan(len(dataset), eval_lanes(config, rows), *common)
        return _loader(config, dataset, split, in_lanes, world, random=False, like=train, mark=in_lanes.mark)
    size = len(dataset) if rows is None else len(rows)
    plan = EvalPlan(size, *common, rows)
    return _loader(config, dataset, split, plan, world, random=False, like=train, with_rows=rows is not None)


def eval_lanes(config: Config, rows: np.ndarray | None) -> int:
    """The lanes of an evaluation, for a task that carries states along them."""
    kind, count = task_class(config).__name__, config.cfg.task.get("eval_lanes")
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"task.eval_lanes={count}: {kind} carries states, and is evaluated in at least 1 lane")
    if rows is not None:
        raise ConfigError(f"task: {kind} carries states from row to row, so it cannot look at single rows of a set")
    return count


def make_statistics_loader(
    config: Config, machine: Hardware, dataset: Any, world: World, task: Task, train: Loader
) -> Loader | None:
    """The training samples of Task.fresh_statistics, if the task asks for them: spread evenly over the set, without
    random transforms."""
    if not task.fresh_statistics:
        return None
    config = replace(config, trainer=replace(config.trainer, max_eval_batches=task.fresh_statistics, eval_in_step=True))
    return make_eval_loader(config, machine, dataset, "train", world, train)


def _loader(
    config: Config, dataset: Any, split: str, plan: Plan, world: World, random: bool, like: Loader | None = None,
    with_rows: bool = False, mark: Transform | None = None,
) -> Loader:  # fmt: skip
    """random: include random transforms (augmentation). mark: says which lane a row is of."""
    own, given = config.data, config.hardware.num_threads
    padded = isinstance(plan, TrainPlan) and plan.padded
    transform = make_transform(config, random, dataset, mark, padded)
    cores = min(int(given), cores_each(local_ranks())) if given != "auto" else None
    return Loader(
        dataset, plan, world.device, transform, own.loader, own.num_workers, seed=config.cfg.seed, cores=cores,
        like=like, split=split, rows=with_rows or task_class(config).numbered,
    )  # fmt: skip


def make_transform(
    config: Config, random: bool, dataset: Any = None, mark: Transform | None = None, padded: bool = False
) -> Transform | None:
    """random: include random transforms (augmentation). dataset: may have transforms of its own, which come first;
    None: of samples from elsewhere, which are as the first part's where there are parts. mark: for a task that carries
    states in lanes. padded: batches of training may hold rows that do not count."""
    nodes = {f"data.transforms.{name}": node for name, node in config.data.transforms.items()}
    if dataset is None and (part := next(iter(config.dataset.get("parts") or {}), None)):
        of_part = config.dataset["parts"][part]["transforms"]
        nodes = {f"data.parts.{part}.transforms.{name}": node for name, node in of_part.items()} | nodes
    transforms = [construct(key, node) for key, node in nodes.items()]
    if task_class(config).numbered:
        transforms.append(add_numbers)
    if task_class(config).carries and mark is not None:
        transforms.append(mark)
    if padded:
        transforms.append(add_counted)
    if config.hardware.channels_last:
        transforms.append(channels_last)

    def prepared(transform: Transform) -> Transform:
        return CompiledChain(transform) if config.hardware.compile else transform

    transform = compose(transforms, training=random)
    last = None if transform is None else prepared(transform)
    first = dataset.batch_transform(random, prepared) if hasattr(dataset, "batch_transform") else None
    return last if first is None else Chain(first, last)


class Chain:
    """The data set's own transform, which is told the rows, then data.transforms."""

    takes_rows = True

    def __init__(self, first: Transform, last: Transform | None) -> None:
        self.first, self.last = first, last

    def __call__(self, batch: Batch, numbers: Tensor, rows: Any) -> Batch:
        batch = self.first(batch, numbers, rows)
        return batch if self.last is None else self.last(batch, numbers)


def channels_last(batch: Batch, numbers: Tensor) -> Batch:
    """Images in the memory order (B, H, W, C); shapes stay (B, C, H, W)."""
    order = torch.channels_last
    images = {name: x for name, x in batch.items() if x.ndim == 4 and x.is_floating_point()}
    return batch | {name: x.contiguous(memory_format=order) for name, x in images.items()}


def add_numbers(batch: Batch, numbers: Tensor) -> Batch:
    return {**batch, "number": numbers}


def add_counted(batch: Batch, numbers: Tensor) -> Batch:
    if "counted" in batch:
        raise ConfigError(
            "data: a field is called 'counted', as what says which rows are padding with data.order.drop_last=false - "
            "give it another name"
        )
    return {**batch, "counted": numbers >= 0}


def seed_rank(config: Config, rank: int) -> None:
    """From here each rank draws its own random numbers (dropout)."""
    seed_everything(config.cfg.seed, stream=1 + rank)


def make_method(
    config: Config,
    machine: Hardware,
    logger: Logger,
    dataset: Any,
    world: World,
    begins: bool = True,
    directory: Path | None = None,
    tape: Tape | None = None,
) -> tuple[nn.Module, Task]:
    """Returns (model, task), on the CPU. Their first weights follow from the seed and the data alone: equal on all
    ranks, in a run, and for whoever else builds them. begins: True for a new run, False if a checkpoint will be loaded.

    dataset: the training set. directory: of the run, where its frozen networks lie; None: of none.
    tape: records the model, which then has no memory yet: for trainer=fsdp, see engine.ranks.deferred."""
    seed_everything(config.cfg.seed)
    with tape or nullcontext():
        model = make_model(config)
    before = torch.get_rng_state()
    task = make_task(config)
    if tape and not torch.equal(before, torch.get_rng_state()):  # its random numbers are those after the model's
        tape.draw()
        task = make_task(config)
    if task.across_samples and (len(machine.micro_batch_sizes) > 1 or config.trainer.strategy == "dp"):
        dp = config.trainer.strategy == "dp"
        key = "trainer=dp" if dp else f"hardware.micro_batch_size={config.hardware.micro_batch_size}"
        raise ConfigError(
            f"{key}: {type(task).__name__} compares the samples of a whole batch with each other, so they must be on "
            f"the devices at once - use {'trainer=ddp' if dp else 'null, or more ranks'}"
        )
    if task.carries and config.trainer.strategy == "dp":
        raise ConfigError(
            f"trainer=dp: {type(task).__name__} writes the states of its lanes, and dp's copies of it lose what they "
            "write - use trainer=ddp"
        )
    check_task(task, model, config.trainer)
    task.run = task_run(config, world, dataset)
    with tape or nullcontext(), constructing("task", config.cfg.task):
        for part in model.modules() if begins else ():
            if load := getattr(part, "load_pretrained", None):  # lab.models.pretrained
                logger.say(load())
        if begins and (line := task.initialize(model, first_batches(config, machine, dataset))):
            logger.say(line)
        task.attach(model)
    with constructing("task", config.cfg.task):
        provide_frozen(task, model, config.cfg.model, directory, begins, world.is_main)
    return model, task


def task_run(config: Config, world: World, dataset: Any = None) -> TaskRun:
    """dataset: the training set; None: nothing is trained."""
    samples = 0 if dataset is None or isinstance(dataset, Stream) else len(dataset)
    steps = 0 if dataset is None else count_steps(config.trainer, samples)
    shape = tuple(config.cfg.data.get("input_shape") or ())
    return TaskRun(world, steps, samples, config.cfg.seed, shape, config.cfg.data.get("num_outputs"))


def first_batches(config: Config, machine: Hardware, dataset: Any) -> Iterator[Batch]:
    """The run's training batches from the first on, for Task.initialize."""
    if isinstance(dataset, Stream):
        raise ConfigError("task: its `initialize` reads training data, and a stream's are read once - use a data set")
    whole = replace(machine, micro_batch_sizes=[config.trainer.global_batch_size])
    config = replace(config, hardware=replace(config.hardware, compile=False, channels_last=False))
    with make_train_loader(config, whole, dataset, World(0, 1, 0, torch.device("cpu")), 0, random=False) as loader:
        yield from loader


def check_task(task: Task, model: nn.Module, trainer: TrainerConfig) -> None:
    """What a task promises by its methods and names, before a batch is read."""
    kind = type(task).__name__
    if len(inspect.signature(task.initialize).parameters) != 2:
        raise ConfigError(f"task: {kind}.initialize takes (model, batches): see lab.tasks.base")
    if overrides(task, "share_in_average") and trainer.ema_decay:
        raise ConfigError(f"trainer.ema_decay={trainer.ema_decay}: {kind} averages the weights by its own rule - null")
    if task.frozen and trainer.strategy == "dp":
        raise ConfigError(f"trainer=dp: {kind} has frozen networks, which it does not copy - use trainer=ddp")
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


def make_method_of_rank(
    config: Config,
    machine: Hardware,
    logger: Logger,
    dataset: Any,
    world: World,
    begins: bool = True,
    directory: Path | None = None,
) -> tuple[nn.Module, Task, Tape | None]:
    """make_method; where the model will be sharded, without memory for it, and the tape that has its weights."""
    make = partial(make_method, config, machine, logger, dataset, world, begins, directory)
    if config.trainer.strategy != "fsdp" or world.size == 1:
        return *make(), None
    tape = Tape()
    try:
        return *make(tape), tape
    except ConfigError as error:  # also of a model whose __init__ looks at weights that are not there yet
        cause = error.__cause__ or error
    model, task = make()
    why = first_line(cause)
    logger.say(f"trainer.fsdp: each process builds the whole {type(model).__name__} in host memory first ({why})")
    return model, task, None


def to_devices(
    model: nn.Module, ema: nn.Module | None, config: Config, machine: Hardware, world: World, tape: Tape | None,
    begins: bool,
) -> None:  # fmt: skip
    """Move the models to the device, in place; with trainer=fsdp and several ranks, shard them over their devices."""
    options = config.trainer.fsdp if config.trainer.strategy == "fsdp" else None
    loaded = set() if begins else {id(value) for value in model.state_dict(keep_vars=True).values()}
    recorded = [entry for entry in tensors_of(model) if id(entry[2]) not in loaded]
    for part in (model, ema):
        if part is not None and options is None:
            part.to(world.device)
        elif part is not None:
            assert options is not None
            shard(part, options, machine.precision, world, machine.compile is not None)
    if tape is not None:
        assert options is not None
        weights_on = torch.device("cpu") if options.cpu_offload else world.device
        try:
            fill_model(model, recorded, tape, weights_on, world.device)
        except Unrecorded as error:
            what = f"trainer=fsdp computes the first weights of {class_name(model)} one by one, and cannot"
            raise ConfigError(f"{what}: {error} - change that, or use trainer=ddp") from error
        if ema is not None:
            allocate_model(ema, weights_on, world.device)
            copy_tensors(model, ema)


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
    config: Config, machine: Hardware, model: nn.Module, task: Task, total_steps: int, world: World,
    tape: Tape | None = None, begins: bool = True,
) -> TrainState:  # fmt: skip
    """model, task: unsharded, on the CPU; moved to the device, or the model sharded over the ranks, in place.

    tape: has the weights of a recorded model. begins: False if a checkpoint will be loaded."""
    trainer, own = config.trainer, config.optim
    ema = moving_average(model) if trainer.ema_decay or overrides(task, "share_in_average") else None
    if again := config.hardware.activation_checkpointing:
        key = "hardware.activation_checkpointing"
        keeps = config.hardware.activation_checkpointing_keeps
        checkpoint_activations(find_blocks(model, again, key).values(), machine.compile is not None, keeps)
    to_devices(model, ema, config, machine, world, tape, begins)
    if is_sharded(model) and (held := next((name for name, _ in task.named_parameters()), None)):
        raise ConfigError(
            f"trainer=fsdp: {type(task).__name__} holds parameters beside the model ({held}), and only the model is "
            "cut over the ranks - use trainer=ddp"
        )
    if tape is not None:  # what the task made of the model's weights
        fill_model(task, tensors_of(task), tape, world.device, world.device)
        tape.clear()
    task.to(world.device)
    if config.hardware.channels_last:
        found = sum(map(in_channels_last, (model, ema, task)))
        if not found:
            raise ConfigError(
                f"hardware.channels_last=true: {type(model).__name__} has no weights of four dimensions (convolutions "
                "of images) - leave it false"
            )
    optimizers = Optimizers()
    trained = {
        objective: trainable(("" if m is model else "task." if m is task else f"{objective}.", m) for m in modules)
        for objective, modules in task.trained(model).items()
    }
    for objective, named in trained.items():
        others = [name for other in trained if other != objective for name, _ in trained[other]]
        optimizers[objective] = make_optimizer(config, named, objective or type(model).__name__, others)
        if not overrides(task, "train_step"):
            check_closure(optimizers[objective], config.optimizer["_target_"])
    factor = construct("optim.schedule", own.schedule)
    with constructing("optim.schedule", own.schedule):
        schedule: Any = Schedule(optimizers, factor, total_steps)
    scaler = make_scaler(machine)
    if may_skip(trainer, scaler) and can_skip([*optimizers.values()]):
        device = optimizers.param_groups[0]["params"][0].device
        schedule = DeviceSchedule(schedule, [*optimizers.values()], device)
    names = {id(p): name for named in trained.values() for name, p in named}
    order = [names.get(id(p), "") for group in optimizers.param_groups for p in group["params"]]
    monitor = [config.monitor.key, config.monitor.mode]
    return TrainState(model, task, ema, optimizers, schedule, scaler, order, monitor)


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


def make_nets(config: Config, machine: Hardware, state: TrainState, world: World) -> dict[str, nn.Module]:
    """Returns {objective: module called with a batch}, wrapped by DDP and torch.compile as the config says."""
    nets: dict[str, nn.Module] = {}
    for objective in state.task.trained(state.model):
        net: nn.Module = Objective(state.model, state.task, objective)
        if config.hardware.precision == "bf16-weights":
            net = WithBf16Weights(net)
        if not is_sharded(state.model):  # FSDP models are sharded and compiled block by block already
            with only(objective, state) if objective else nullcontext():
                net = wrap_net(net, world, config.trainer)
            net = compiled(net, config.hardware, machine) if machine.compile else net
        nets[objective] = net
    return nets
