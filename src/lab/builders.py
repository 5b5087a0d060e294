"""Build task, optimizers, schedule, callbacks and training state. These get single values, not the whole config."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lab.callbacks.base import Callback
from lab.callbacks.hooks import check_hooks
from lab.config import Config
from lab.groups import mixed_parts
from lab.loaders import task_class
from lab.model_io import make_model
from lab.objective_optim import OptimNode
from lab.optim import (
    Named,
    Schedule,
    build_optimizer,
    check_closure,
    constants_in,
    largest,
    parameter_groups,
    trainable,
)
from lab.options import TrainerConfig
from lab.project import PROJECT
from lab.pruning import Pruner, pruned
from lab.renamed import check_method, check_task_names
from lab.schedules.constant import Epochs
from lab.state import TrainState
from lab.tasks.base import Task, TaskRun, overrides
from samebits.checkpoints import Optimizers
from samebits.data import Stream
from samebits.device import BLOCKS, Hardware
from samebits.errors import ConfigError, one_line
from samebits.loggers import Logger
from samebits.process import model_of_rank, to_devices
from samebits.profiling import is_out_of_memory
from samebits.schema import did_you_mean
from samebits.shards import is_sharded
from samebits.steps import begin_momentum, seed_everything
from samebits.targets import construct, constructing, locate, of_kind
from samebits.world import World


def make_callbacks(config: Config) -> list[Callback]:
    """Build the callbacks; with pruning, the first one prunes. Raise ConfigError as `check_hooks` does."""
    callbacks: list[Callback] = [] if config.pruning.sparsity is None else [Pruner(config.pruning)]
    for name, node in config.values["callback"].items():
        callbacks.append(construct(PROJECT, f"callback.{name}", node, Callback))
        check_hooks(f"callback.{name}", type(callbacks[-1]))
    return callbacks


def seed_rank(config: Config, rank: int) -> None:
    """Seed all random number generators differently on each rank, so that dropout masks differ."""
    seed_everything(config.seed, stream=1 + rank)


def task_run(config: Config, world: World, dataset: Any = None) -> TaskRun:
    """Return the task's TaskRun. dataset: the training set; None: nothing is trained."""
    samples = 0 if dataset is None or isinstance(dataset, Stream) else len(dataset)
    steps = 0 if dataset is None else count_steps(config.trainer, samples)
    data = config.values["data"]
    shape, parts = tuple(data.get("input_shape") or ()), tuple(mixed_parts(data))
    return TaskRun(world, steps, samples, config.seed, shape, data.get("num_outputs"), parts=parts)


def averaging_rules(config: Config, task: Task, model: nn.Module) -> list[str]:
    """Return the config values and classes that average the weights: trainer.ema_decay, an optimizer with eval_weight,
    a task with averaging_factor. A valid config has at most one; [] means that the weights themselves are evaluated."""
    decay, weights = config.trainer.ema_decay, {id(p) for p in model.parameters()}
    rules = [f"trainer.ema_decay={decay}"] if decay else []
    objectives = task.objectives(model).items()
    used = [name for name, modules in objectives if any(id(p) in weights for m in modules for p in m.parameters())]
    for node in {node.key: node for node in (optim_of(config, name) for name in used)}.values():
        averages = hasattr(locate(PROJECT, node.target, node.key), "eval_weight")
        rules += [f"{node.key}._target_={node.target}"] * averages
    return rules + ([type(task).__name__] if overrides(task, "averaging_factor") else [])


def optim_of(config: Config, objective: str) -> OptimNode:
    """Return the config of an objective's optimizer: its entry in `optim.objectives`, or `optim`."""
    return config.optimizers.get(objective, config.optimizers[""])


def check_task(task: Task, model: nn.Module, config: Config, hardware: Hardware) -> None:
    """Raise ConfigError if the task's methods and attributes contradict each other or the config. Reads no batch."""
    check_task_names(task)  # lab.renamed
    kind, trainer = type(task).__name__, config.trainer
    accumulates, dp = len(hardware.micro_batch_sizes) > 1, trainer.strategy == "dp"
    if task.allows_micro_batches and accumulates and hardware.compile not in (None, BLOCKS):
        raise ConfigError(
            f"hardware.compile={hardware.compile}: with several micro-batches {kind} computes each output twice, and "
            f"the dropout of both must be equal - use hardware.compile={BLOCKS} or false"
        )
    if task.needs_global_batch and (dp or (accumulates and not task.allows_micro_batches)):
        key = "trainer=dp" if dp else f"hardware.micro_batch_size={config.hardware.micro_batch_size}"
        raise ConfigError(
            f"{key}: {kind} compares all samples of a batch with each other, so all must be on the devices at "
            f"once - use {'trainer=ddp' if dp else 'null, or more ranks'}"
        )
    if task.stateful and dp:
        raise ConfigError(
            f"trainer=dp: {kind} writes the states of its lanes, but DataParallel discards changes of its replicas - "
            "use trainer=ddp"
        )
    if len(inspect.signature(task.initialize).parameters) != 2:
        raise ConfigError(f"task: {kind}.initialize must take (model, batches): see lab.tasks.base")
    if task.frozen_networks and dp:
        raise ConfigError(f"trainer=dp: {kind} has frozen networks, which DataParallel does not copy - use trainer=ddp")
    twice = [name for name in task.metrics if name in ("loss", *task.loss_names)]
    if twice:
        raise ConfigError(f"task.metrics.{twice[0]}: {kind} has a loss of this name - choose another for the metric")
    objectives: Any = task.objectives(model)
    lists = isinstance(objectives, Mapping) and all(
        isinstance(modules, (list, tuple)) for modules in objectives.values()
    )
    if not lists:  # iterating over an nn.Sequential would give its modules
        raise ConfigError(
            f"task: {kind}.objectives must return a list of modules for each objective, {{'': [model, self]}}"
        )
    if unknown := next((name for name in config.optimizers if name and name not in objectives), None):
        named = [name for name in objectives if name]
        remedy = f" (objectives: {', '.join(named)})" if named else ", but one optimizer, which `optim` configures"
        raise ConfigError(
            f"optim.objectives.{unknown}: {kind} has no objective {unknown!r}{did_you_mean(unknown, named)}{remedy}"
        )
    if len(rules := averaging_rules(config, task, model)) > 1:
        raise ConfigError(f"{rules[0]}: {rules[1]} averages the weights too - remove one of them")
    for objective in objectives:
        if objective and not callable(getattr(task, f"{objective}_losses", None)):
            raise ConfigError(
                f"task: {kind}.objectives contains {objective!r}, so {kind} needs a method {objective}_losses"
            )
    if not overrides(task, "losses"):
        raise ConfigError(f"task: {kind} needs losses(model, batch) -> (losses, output): see lab.tasks.base")


def make_task(config: Config) -> Task:
    """Build the task with its inner nodes (criterion, metrics, ...). Raise ConfigError if it is not a Task."""
    node = config.values["task"]
    task_class(config)
    # inner nodes are built first, so that an error names them
    inner = {name: _built(f"task.{name}", value) for name, value in node.items()}
    inner = {name: value for name, value in inner.items() if value is not node[name]}
    outer = {name: value for name, value in node.items() if name not in inner} | {"_partial_": True}
    make = construct(PROJECT, "task", outer)
    with constructing(PROJECT, "task", node):
        task: Task = of_kind("task", node, make(**inner), Task)
    if "_modules" not in vars(task):
        raise ConfigError(f"task: the __init__ of {type(task).__name__} must begin with super().__init__()")
    return task if config.pruning.sparsity is None else pruned(task, config.pruning)


def _built(key: str, node: Any) -> Any:
    """Build each node that has a _target_, also inside lists and dicts. Return other values as the same object."""
    if isinstance(node, dict) and "_target_" in node:
        return construct(PROJECT, key, node, object)
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    built = {name: _built(f"{key}.{name}", value) for name, value in items}
    if all(built[name] is value for name, value in items):
        return node
    return built if isinstance(node, dict) else list(built.values())


def make_model_of_rank(config: Config, logger: Logger, world: World) -> nn.Module:
    """Build the model for trainer=fsdp; see samebits.process.models."""
    hook = next((name for name in ("initialize", "setup") if overrides(task_class(config), name)), None)
    why = f"{task_class(config).__name__}.{hook} may read its weights" if hook else None
    return model_of_rank(partial(make_model, config), why, config.seed, world, logger)


def count_steps(trainer: TrainerConfig, num_samples: int, step: int = 0, samples: int = 0) -> int:
    """Return the number of optimizer steps of the whole run. num_samples: samples of one epoch.

    step, samples: number done before a resume, perhaps with another batch size. Epochs are counted in samples.
    """
    limits = [trainer.max_steps]
    if trainer.max_epochs:
        batch = trainer.global_batch_size
        ahead = step - samples / batch  # 0 unless a resume changed the batch size; rounds as in a new run
        limits.append(max(1, round(trainer.max_epochs * (num_samples / batch) + ahead)))
    return min(limit for limit in limits if limit is not None)


def make_state(
    config: Config, hardware: Hardware, model: nn.Module, task: Task, total_steps: int, world: World,
    epochs: Epochs | None = None,
) -> TrainState:  # fmt: skip
    """Return the training state of a new run. model, task: as Experiment.build_model_and_task returns them; they are
    moved to the device in place, or the model is sharded over the ranks. epochs: for schedules that count epochs."""
    try:
        ema = copy.deepcopy(model).requires_grad_(False) if averaging_rules(config, task, model) else None
    except (TypeError, RuntimeError) as error:  # a lock, a generator, torch.nn.utils.weight_norm
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            f"model: {type(model).__name__} cannot be copied for the weight average ({one_line(error)}): create the "
            "part that cannot be copied in `forward`, or train without the average"
        ) from error
    to_devices(model, ema, task, config, hardware, world)
    if is_sharded(model) and (held := next((name for name, _ in task.named_parameters()), None)):
        raise ConfigError(
            f"trainer=fsdp: {type(task).__name__} has parameters ({held}), but only the model can be "
            "sharded - use trainer=ddp"
        )
    optimizers = Optimizers()
    trained = {
        objective: trainable(("" if m is model else "task." if m is task else f"{objective}.", m) for m in modules)
        for objective, modules in task.objectives(model).items()
    }
    for objective, named in trained.items():
        others = [name for other in trained if other != objective for name, _ in trained[other]]
        optimizers[objective] = make_optimizer(config, named, objective or type(model).__name__, others, objective)
        if not overrides(task, "train_step"):
            node = optim_of(config, objective)
            check_closure(optimizers[objective], f"{node.key}._target_={node.target}")
    nodes = {name: node for name, node in config.optimizers.items() if name}
    optimizers.clip_norms = {name: node.options.clip_norm for name, node in nodes.items()}  # type: ignore[union-attr]
    factors = {name: make_factor(node, config.rules, epochs) for name, node in config.optimizers.items()}
    with constructing(PROJECT, "optim.schedule", config.optim.schedule):
        schedule = Schedule(optimizers, factors.pop(""), total_steps, factors)
    scaler = hardware.make_scaler()
    for optimizer in optimizers.values():
        begin_momentum(optimizer)
    names = {id(p): name for named in trained.values() for name, p in named}
    order = [names.get(id(p), "") for group in optimizers.param_groups for p in group["params"]]
    monitor = [config.monitor.key, config.monitor.mode]
    return TrainState(model, task, ema, optimizers, schedule, scaler, order, monitor, rules=config.rules)


def make_factor(node: OptimNode, rules: int, epochs: Epochs | None) -> Any:
    """Build a schedule. rules: the run's version of lab.options.RULES."""
    key = f"{node.key}.schedule"
    factor = construct(PROJECT, key, node.options.schedule)
    check_method(key, factor, "on_score")  # lab.renamed
    for constant in constants_in(factor):
        object.__setattr__(constant, "epochs", epochs)
        if rules < 2:
            object.__setattr__(constant, "every_step_trains", False)
    return factor


def make_optimizer(
    config: Config, named: Named, whose: str, others: Sequence[str] = (), objective: str = ""
) -> Optimizer:
    """Build the optimizer of `named` parameters. whose: their owner's name, for messages. others: names of parameters
    of other optimizers. Raise ConfigError if `named` is empty."""
    node = optim_of(config, objective)
    key, options = node.key, node.options
    if not named:
        raise ConfigError(f"model: {whose} has no parameters that require a gradient: nothing to train")
    decay = largest(node.optimizer, "weight_decay")
    # an expression in `optim` may match only parameters of other objectives; one in an entry must match its own
    shared = config.optim.lr_factors.items()
    of_entry = dict(item for item in options.lr_factors.items() if item not in shared)
    parameter_groups(named, decay, options.decay_norms_and_biases, of_entry, (), key)  # checks them
    make = construct(PROJECT, key, node.optimizer)
    with constructing(PROJECT, key, node.optimizer):
        optimizer = build_optimizer(
            make, lambda: parameter_groups(named, decay, options.decay_norms_and_biases, options.lr_factors, others)
        )
        check_method(key, optimizer, "eval_weight")  # lab.renamed
        of_kind(key, node.optimizer, optimizer, Optimizer)
    if not hasattr(optimizer, "param_groups"):
        raise ConfigError(
            f"{key}: the __init__ of {type(optimizer).__name__} must call super().__init__(params, defaults)"
        )
    return optimizer
