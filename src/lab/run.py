"""Train on one rank: build the objects, load the checkpoint of a resume, fit, score. samebits.process calls `train` and
records how it ended."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from lab.average import modules_in_eval_mode
from lab.builders import count_steps, make_callbacks, seed_rank
from lab.callbacks.base import overridden_methods
from lab.config import Config
from lab.evaluation import final_scores, validate
from lab.experiment import Data, Experiment, flop_of_sample
from lab.loaders import (
    check_classes_of_run,
    describe_transforms,
    make_bn_loader,
    make_datasets,
    make_eval_loader,
    samples_of_epoch,
    shared_rows,
    unlike_splits,
)
from lab.loop import fit
from lab.objective import LossModule
from lab.optim import check_optimizer, check_trained, follows_scores, schedule_change, unreached_points
from lab.options import TrainerConfig
from lab.profiling import OUTSIDE_STEP, PARTS, losses_of
from lab.project import PROJECT
from lab.rehearsal import mistakes_before_training, rehearse
from lab.schedules.constant import Epochs
from lab.schedules.plateau import Plateau
from lab.state import RunContext, TrainState
from lab.statistics import with_statistics
from lab.transforms.fields import KEPT
from samebits.checkpoints import BufferChecks, copy_from_mmap, error_line, eval_state_dict, load_weights, reshard_like
from samebits.data import StatefulOrder, Stream, check_same_data
from samebits.errors import ConfigError, one_line
from samebits.parallel import RankTiming, with_sync_batchnorm
from samebits.process import RankProcess, log_header, node_text
from samebits.profiling import cost_of_sample, explained, profiling
from samebits.schema import leaves, parse_interval
from samebits.status import write_class_names
from samebits.sweeps import Pruning
from samebits.targets import locate
from samebits.world import Stopped


def train(process: RankProcess) -> dict[str, Any]:
    """Open the data, build model and task, load the checkpoint if there is one, train and score.

    Return the content of result.json."""
    experiment, payload = make_experiment(process), process.payload
    process = replace(process, config=experiment.config)
    progress = payload or {"samples": 0}
    with experiment.open(progress["samples"], progress.get("order")) as data:
        for line in check_same_data(process.world, {"train": data.train, **data.eval_loaders}):
            process.logger.warn(line)
        with name_float_cast_in_errors(process, data):
            state, loss_modules, run = build(process, experiment, data)
        is_new = payload is None
        seed_rank(process.config, process.world.rank)
        if payload is not None:
            load_payload(state, payload, process.config, run)
            payload.clear()  # frees its memory: `process` keeps the dict to the end
        start_callbacks(state, run)
        log_start(process, data, state, run)
        with mistakes_before_training(state, is_new), name_float_cast_in_errors(process, data):
            if is_new and run.eval_every and run.total_steps:
                with explained(run.hardware, lambda: "evaluating, before the first step"):
                    rehearse(state, data.val_loaders, run)
            return fit_and_score(process, data, state, loss_modules, run)


@contextmanager
def name_float_cast_in_errors(process: RankProcess, data: Data) -> Iterator[None]:
    """In this block, replace torch's error about a floating-point index by a ConfigError. Such an index is a label or a
    token id that a transform has converted to float; the error names the transform."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        lines = describe_transforms(process.config, data.sets["train"])
        cast = next((line for line in lines if KEPT in line), None)
        if cast is None or not re.search("indices|index tensor", str(error)):
            raise
        raise ConfigError(
            f"{one_line(error)} - {cast}; to turn the conversion off, add ~data.transforms.to_float"
        ) from error


def make_experiment(process: RankProcess) -> Experiment:
    """Build the data sets and compute their statistics. A stream starts at the read position in the checkpoint."""
    config, world, logger, payload = process.config, process.world, process.logger, process.payload
    trainer = config.trainer
    with world.file_of_host() as shared:
        sets = make_datasets(config, shared)
    if payload is not None:
        check_classes_of_run(sets["train"], process.directory)
    for line in shared_rows(sets) if world.is_main else ():  # other ranks print no warnings
        logger.warn(line)
    if world.is_main and (names := getattr(sets["train"], "class_names", None)):
        write_class_names(process.directory, names)
    if not any(split.startswith("val") for split in sets):
        check_needs_no_validation(config)
    if trainer.global_batch_size > len(sets["train"]):
        logger.warn(
            f"trainer.global_batch_size={trainer.global_batch_size} is more than the {len(sets['train']):,} training "
            "samples: each step uses some of them more than once"
        )
    if isinstance(sets["train"], Stream) and payload and payload.get("source"):
        sets["train"].load_state_dict(payload["source"])
    config = with_statistics(config, sets["train"], world, process.directory, payload is None, logger.say)
    return Experiment(config, process.hardware, world, sets)


def check_needs_no_validation(config: Config) -> None:
    """Raise ConfigError if early stopping or a schedule follows the scores of a validation split."""
    keys = ["trainer.early_stop_patience"] if config.trainer.early_stop_patience is not None else []
    for node in config.optimizers.values():
        key, target = f"{node.key}.schedule", node.options.schedule["_target_"]
        keys += [f"{key}._target_={target}"] if follows_scores(locate(PROJECT, target, key)) else []
    if keys:
        raise ConfigError(f"{keys[0]}: needs a validation split, but data.splits.val is null")


def build(
    process: RankProcess, experiment: Experiment, data: Data
) -> tuple[TrainState, dict[str, nn.Module], RunContext]:
    """Return (initial training state, {objective: LossModule, wrapped by DDP and torch.compile}, RunContext)."""
    config, world, logger, payload = process.config, process.world, process.logger, process.payload
    trainer, dataset = config.trainer, data.sets["train"]
    done = (payload["step"], payload["samples"]) if payload else (0, 0)
    samples_per_epoch = samples_of_epoch(data.train, dataset, trainer, *done)
    total_steps = steps_of_run(trainer, samples_per_epoch, *done)
    model, task = experiment.build_model_and_task(logger, payload is None, process.directory)
    hardware = process.hardware_for(flop_of_sample(model, task))
    # on all ranks, because losses may use collectives
    losses = losses_of(model, task)
    cost = cost_of_sample(config.profiler, hardware, [model, task], losses, dataset, data.train.first, logger)
    if trainer.sync_batchnorm:
        model = with_sync_batchnorm(model, world.device)
    batch_size = trainer.global_batch_size
    epochs = Epochs(samples_per_epoch / batch_size, done[0] - done[1] / batch_size)
    state, loss_modules = replace(experiment, hardware=hardware).start_training(model, task, total_steps, epochs)
    order = data.train.plan.order  # type: ignore[attr-defined]
    state.epoch_samples = task.run.epoch_samples
    state.source = dataset if isinstance(dataset, Stream) else None
    state.order = order if isinstance(order, StatefulOrder) else None
    buffer_checks = BufferChecks(LossModule(model, task), task, state.ema, model)
    if state.ema is not None and (name := next((n for n, p in task.named_parameters() if p.requires_grad), None)):
        logger.warn(
            f"the weight average has only the model; the task's parameters ({name}) are evaluated without averaging"
        )
    rank_timing = None
    if world.size > 1:
        rank_timing = RankTiming(
            next(iter(loss_modules.values())), world, data.train, logger, config.process.straggler_threshold
        )
    bn_batches = make_bn_loader(config, hardware, dataset, world, task, data.train)
    data.opened.extend([bn_batches] if bn_batches else [])
    trial_pruning = Pruning.of(PROJECT, process.directory)  # ends bad trials of a search
    callbacks = [*([] if trial_pruning is None else [trial_pruning]), *make_callbacks(config)]
    intervals: dict[str, Any] = {}
    for name in ("log_every", "eval_every", "save_every"):
        steps = parse_interval(getattr(trainer, name), epochs.steps)
        # runs that began with version 0.2 rounded intervals to whole steps
        intervals[name] = steps and round(steps) if state.rules < 2 else steps
    run = RunContext(
        world, trainer, config.monitor, hardware, logger, process.checkpoints, callbacks, process.stop,
        process.watchdog, buffer_checks, samples_per_epoch=samples_per_epoch, total_steps=total_steps, **intervals,
        rank_timing=rank_timing, cost_per_sample=cost, peek_batch=data.train.first, bn_batches=bn_batches,
        train=data.train, train_set=dataset, stop_at_step=config.process.stop_at_step,
        iterate_rows=partial(make_eval_loader, config, hardware, dataset, "train", world, data.train, True),
    )  # fmt: skip
    task.run = replace(task.run, total_steps=total_steps, context=run)
    return state, loss_modules, run


def steps_of_run(trainer: TrainerConfig, samples_per_epoch: int, step: int, samples: int) -> int:
    """Return the number of optimizer steps of the whole run. Raise ConfigError if the run is already past that step.

    step, samples: number done before the resume, perhaps with another batch size; (0, 0) for a new run."""
    total_steps = count_steps(trainer, samples_per_epoch, step, samples)
    if step > total_steps:
        raise ConfigError(
            f"trainer.max_steps, trainer.max_epochs: the run is already at step {step:,} of {total_steps:,} - give more"
        )
    return total_steps


def start_callbacks(state: TrainState, run: RunContext) -> None:
    """Set `run` of the callbacks and call their on_start."""
    for callback in run.callbacks:
        object.__setattr__(callback, "run", run)  # works for frozen dataclasses too
    run.notify("on_start", state)


def log_start(process: RankProcess, data: Data, state: TrainState, run: RunContext) -> None:
    """Log the first lines of a run: warnings about the config and the data, then what is trained."""
    logger = process.logger
    for line in unreached_points(state.schedule):
        logger.warn(line)
    if getattr(data.train.plan, "padded", False) and (norm := batch_norm(state.model)):
        logger.warn(
            "data.order.drop_last=false: an epoch's last batch is padded with rows that the loss ignores, but the "
            f"statistics of {norm} include them - drop_last=true does not pad batches"
        )
    changes = [*describe_transforms(process.config, data.sets["train"]), *unlike_splits(data.sets)]
    if state.rules >= 2 and (in_eval_mode := modules_in_eval_mode(state.model)):
        names = ", ".join(name or "all of it" for name in in_eval_mode[:4]) + ", ..." * (len(in_eval_mode) > 4)
        changes.append(f"modules that the model keeps in evaluation mode: {names}")
    log_header(process, run, state.model, data.sets, *header_values(process.config, state.optimizer), changes)


def header_values(config: Config, objectives: Iterable[str]) -> tuple[list[Any], list[Any]]:
    """Return ([task, model], [optimizer, schedule, other values]) for the first lines of the log."""
    task, model = config.values["task"], config.values["model"]
    model = {key: value for key, value in model.items() if key not in ("input_shape", "num_outputs")}
    trainer = config.trainer
    limits = {"clip_norm": trainer.clip_norm, "ema_decay": trainer.ema_decay, "seed": config.seed}
    bits = {name: getattr(config.quantization, name) for name in ("weight_bits", "activation_bits")}
    limits |= {"sparsity": config.pruning.sparsity, **bits}
    values: list[Any] = [f"{key}={value}" for key, value in limits.items() if value is not None]
    if not {*objectives} <= config.optimizers.keys() - {""}:  # an objective uses `optim` itself
        values = [config.optimizer, config.optim.schedule, *values]
    for name, node in config.optimizers.items():
        if name:
            options: Any = node.options
            clip = f"clip_norm={options.clip_norm or 'null'}"
            values += [f"{name}: {node_text(node.optimizer)}", options.schedule, clip]
    return [task, model], values


def batch_norm(model: nn.Module) -> str | None:
    """Return name and class of the first module that uses batch statistics in training; None: no such module."""
    for name, module in model.named_modules():
        by_batch = isinstance(module, nn.modules.batchnorm._BatchNorm) or hasattr(module, "running_mean")
        if by_batch and module.training and not isinstance(module, nn.modules.instancenorm._InstanceNorm):
            return f"{name} ({type(module).__name__})"
    return None


def fit_and_score(
    process: RankProcess, data: Data, state: TrainState, loss_modules: dict[str, nn.Module], run: RunContext
) -> dict[str, Any]:
    """Train, then score the best weights. Return result.json's content: {"step": ...} only, if the run was stopped."""
    config, logger, stop = process.config, process.logger, process.stop
    try:
        logger.begin(state.step, run.total_steps)
        compiles = bool(config.hardware.compile)
        with profiling(
            config.profiler, run, loss_modules.values(), data.train, compiles, PARTS, OUTSIDE_STEP
        ) as batches:
            validate_sets = partial(validate, val_loaders=data.val_loaders, run=run) if data.val_loaders else None
            fit(loss_modules, state, batches, validate_sets, run)
        logger.end_bar()
        stop.receive_broadcast()
        if state.stop_reason == "pruned":
            return {"step": state.step, "pruned": True}
        if stop.cause:
            return {"step": state.step}
        rank_figures = {} if run.rank_timing is None else run.rank_timing.report()
        data.train.close()
        final = final_scores(state, data.eval_loaders, run)
        with process.watchdog.user_code("a callback's on_end", state.step):
            end_callbacks(run.callbacks, state, {key: value for key, value in final.items() if "/" in key})
        return final | rank_figures
    except Stopped:  # during the final scores: the resumed run computes them again
        return {"step": state.step}


def end_callbacks(callbacks: Iterable[Any], state: Any, scores: dict[str, float]) -> None:
    """Call the callbacks' on_end(state, scores). An override may omit `scores`."""
    for on_end in overridden_methods(callbacks, "on_end"):
        takes_scores = len(inspect.signature(on_end).parameters) > 1
        on_end(*((state, scores) if takes_scores else (state,)))


def load_payload(state: TrainState, payload: dict[str, Any], config: Config, run: RunContext) -> None:
    """Load the checkpoint's payload into `state`. Raise ConfigError if it does not fit the config."""
    kind = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in state.optimizer.values()))
    check_optimizer(payload["optimizer"]["param_groups"], state.optimizer, kind)
    # checkpoints of older versions lack the names
    check_trained(payload.get("parameter_names", state.parameter_names), state.parameter_names)
    monitor = state.monitor
    payload = reshard_like(payload, state.model, state.optimizer)
    # optimizer arguments in the config replace those in the checkpoint, except `lr`: the schedule sets it before each
    # step, and a finished run that is resumed takes no step, so it must save the rate that it has loaded
    keys = [key for node in config.optimizers.values() for key in leaves(node.optimizer, "optim")]
    options = {key.rpartition(".")[2] for key in keys} - {"lr"} | {"fused"}
    load_weights(state.model, payload["model"], "the checkpoint")
    if state.ema is not None:
        load_weights(state.ema, eval_state_dict(payload), "the checkpoint")
    if "task" in payload:  # checkpoints of older versions lack it: their tasks had no state
        load_weights(state.task, payload["task"], "the checkpoint", "task")
    payload["optimizer"] = copy_from_mmap(payload["optimizer"], run.world.device)
    try:
        state.load(payload, run.world, options=options)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"the checkpoint does not fit this run: {error_line(error)} "
            "(see docs/troubleshooting.md#checkpoint-does-not-fit)"
        ) from error
    step = run.replica_checks.step = state.step
    if line := schedule_change(state.schedule, payload["schedule"], step):
        run.logger.warn(line)
    if skipped := step - payload["schedule"].get("updates", step):  # older versions did not count skipped steps
        run.logger.warn(
            f"optim.schedule: the checkpoint is from a version that did not count skipped steps; this one does, so the "
            f"learning rate continues at step {step + 1:,} of the schedule, not {step + 1 - skipped:,} ({skipped:,} "
            "skipped)"
        )
    if state.monitor != monitor:
        before, after = " ".join(state.monitor), " ".join(monitor)
        run.logger.warn(f"monitor: changed from {before} to {after}, so the best score is reset")
        state.monitor, state.best, state.best_score, state.evals_without_improvement = monitor, [], None, 0
        for factor in state.schedule.factors.values():
            if isinstance(factor, Plateau):
                factor.best, factor.stale = None, 0
    state.best = [entry for entry in state.best if run.checkpoints.best_path(entry).exists()]
