"""What one rank does, from start to end: build, resume, fit, score."""

from __future__ import annotations

import faulthandler
import inspect
import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from lab.average import held_still
from lab.callbacks.base import overriding
from lab.config import Config
from lab.evaluation import final_scores, validate
from lab.experiment import Data, Experiment, flop_of_sample
from lab.header import describe, what_is_trained
from lab.loaders import (
    describe_transforms,
    make_datasets,
    make_eval_loader,
    make_statistics_loader,
    samples_of_epoch,
    unlike_splits,
)
from lab.loop import fit
from lab.make import count_steps, make_callbacks, seed_rank
from lab.objective import LossModule
from lab.optim import check_optimizer, check_trained, follows_scores, stretched
from lab.options import TrainerConfig
from lab.profiling import profiling, work_of
from lab.project import PROJECT
from lab.rehearsal import mistakes_before_training, rehearse
from lab.schedules.plateau import Plateau
from lab.state import Every, Run, TrainState
from lab.transforms.fields import KEPT
from samebits.checkpoints import BufferChecks, Checkpoints, error_line, laid_out, load_weights, unmapped, weights_of
from samebits.data import StatefulOrder, Stream, check_alike
from samebits.device import Hardware, resolve_auto_of_run, resolve_hardware
from samebits.errors import ConfigError, one_line
from samebits.files import write_json
from samebits.host import gpu_facts, machine_facts, machine_line
from samebits.loggers import WANDB, Logger, RunLogger, log_to, stopped_by_wandb
from samebits.parallel import Balance, with_sync_batchnorm
from samebits.private import skip_dynamo_import
from samebits.profiling import explained
from samebits.runs import CLASSES, RESULT, read_status, record_machine, record_start, shown, write_status
from samebits.saved import read_config
from samebits.schema import leaves, parse_interval, seconds
from samebits.sweeps import Pruning
from samebits.targets import locate
from samebits.world import Stopped, StopRequest, Watch, World, place, process_group, recording, stop_on_signals


def run(run_dir: Path, began: float | None = None) -> None:
    """Run one rank, from the resolved config to result.json; resumes from the newest valid checkpoint if there is one.

    began: time.monotonic() when the command began; process.max_time counts from there.
    """
    began = time.monotonic() if began is None else began
    rank = place.rank
    with recording(run_dir, rank), stop_on_signals(began) as stop:
        if not faulthandler.is_enabled():  # a sweep's job has enabled it already, into a file
            faulthandler.enable(file=2)  # print Python's stack to stderr when native code crashes
        config = Config.of(read_config(PROJECT, run_dir))
        timeout_s = seconds(config.process.timeout)
        stop.max_time_s = seconds(config.process.max_time)
        watch = Watch(run_dir, rank, place.size or 1, timeout_s)
        machine = resolve_hardware(config.hardware, config.trainer)
        machine.apply(config.hardware)
        if not config.hardware.compile:
            skip_dynamo_import()
        with (
            watch.running(),
            process_group(machine.device, collective_timeout_s(timeout_s)) as world,
            Checkpoints(
                run_dir / "checkpoints", world, beside=config.process.save_async, saved=stop.saved
            ) as checkpoints,
            recording(run_dir, world.rank, watch),
            log_to(run_dir) if world.is_main else nullcontext(),
        ):
            if world.size > 1 and not place.has_parent:
                watch.dead_peers = world.dead_peers()
            # ---- the checkpoint to resume from: all ranks check it together and load the same one
            checkpoints.directory.mkdir(exist_ok=True)
            source, payload = checkpoints.newest_valid(put_aside=True) or (None, None)
            with make_logger(run_dir, config, world, payload or {"step": 0}, began) as logger:
                watch.before_end = logger.give_up
                title = f"run {shown(run_dir)}" + (f", on from {source.name}" if source else "")
                process = Process(config, machine, world, logger, checkpoints, stop, watch)
                result = train(process, payload, title)
                watch.beat("ending", result["step"], slow=True)
                finish(run_dir, world, logger, stop, result, time.monotonic() - began)


@dataclass(frozen=True)
class Process:
    """What a rank has before anything of the experiment is built."""

    config: Config
    machine: Hardware
    world: World
    logger: Logger
    checkpoints: Checkpoints
    stop: StopRequest
    watch: Watch

    @property
    def directory(self) -> Path:
        return self.checkpoints.directory.parent


def train(process: Process, payload: dict[str, Any] | None, title: str) -> dict[str, Any]:
    """Open the data, build the method, resume or begin, train and score. Returns result.json's content.

    payload: the checkpoint's, of a run that goes on. title: logged before training."""
    experiment = load_sets(process, payload)
    begun = payload or {"samples": 0}
    with experiment.open(begun["samples"], begun.get("order")) as data:
        for line in check_alike(process.world, {"train": data.train, **data.others}):
            process.logger.warn(line)
        with explained_cast(process, data):
            state, nets, run = build(process, experiment, data, payload)
        begins = payload is None
        begin(process, data, state, run, payload, title)
        with mistakes_before_training(state, begins), explained_cast(process, data):
            if begins and run.every.eval and run.total_steps:
                with explained(run.machine, lambda: "evaluating, before the first step"):
                    rehearse(state, data.vals, run)
            return fit_and_score(process, data, state, nets, run)


@contextmanager
def explained_cast(process: Process, data: Data) -> Iterator[None]:
    """In this block an error of an index that is no integer names the transform that made a number of it."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        lines = describe_transforms(process.config, data.sets["train"])
        cast = next((line for line in lines if KEPT in line), None)
        if cast is None or not re.search("indices|index tensor", str(error)):
            raise
        raise ConfigError(f"{one_line(error)} - {cast}: ~data.transforms.to_float leaves an index as it is") from error


def load_sets(process: Process, payload: dict[str, Any] | None) -> Experiment:
    """Return the run with its data sets, a stream at the position where the payload's run has stopped reading."""
    config, world, logger = process.config, process.world, process.logger
    trainer, sets = config.trainer, make_datasets(config)
    if world.is_main and (names := getattr(sets["train"], "class_names", None)):
        write_json(process.directory / CLASSES, names)
    if not any(split.startswith("val") for split in sets):
        schedule = config.optim.schedule["_target_"]
        for key, asked in (
            ("trainer.early_stop_patience", trainer.early_stop_patience is not None),
            (f"optim.schedule._target_={schedule}", follows_scores(locate(PROJECT, schedule, "optim.schedule"))),
        ):
            if asked:
                raise ConfigError(f"{key}: needs a validation split, but data.splits.val is null")
    if trainer.global_batch_size > len(sets["train"]):
        logger.warn(
            f"trainer.global_batch_size={trainer.global_batch_size} is more than the {len(sets['train']):,} training "
            "samples: each step sees some of them more than once"
        )
    if isinstance(sets["train"], Stream) and payload and payload.get("source"):
        sets["train"].load_state_dict(payload["source"])
    return Experiment(config, process.machine, world, sets)


def build(
    process: Process, experiment: Experiment, data: Data, payload: dict[str, Any] | None
) -> tuple[TrainState, dict[str, nn.Module], Run]:
    """Model, task and optimizer with their first values; what of them is trained, and what surrounds the training."""
    config, world, logger = process.config, process.world, process.logger
    trainer, dataset = config.trainer, data.sets["train"]
    done = (payload["step"], payload["samples"]) if payload else (0, 0)
    size = samples_of_epoch(data.train, dataset, trainer, *done)
    total_steps = steps_of_run(trainer, size, *done)
    model, task = experiment.make_method(logger, payload is None, process.directory)
    machine = resolve_auto_of_run(
        process.machine, process.directory, world, flop_of_sample(model, task), begins=payload is None
    )
    # on all ranks: losses may talk to the others
    work = work_of(config.profiler, machine, model, task, dataset, data.train.first, logger)
    if trainer.sync_batchnorm:
        model = with_sync_batchnorm(model, world.device)
    state, nets = replace(experiment, machine=machine).begin(model, task, total_steps)
    order = data.train.plan.order  # type: ignore[attr-defined]
    state.epoch_samples = task.run.epoch_samples
    state.source, state.order = data.source, order if isinstance(order, StatefulOrder) else None
    buffers = BufferChecks(LossModule(model, task), task, state.ema)
    if state.ema is not None and (name := next((n for n, p in task.named_parameters() if p.requires_grad), None)):
        logger.warn(f"trainer.ema_decay averages the model; what the task trains ({name}) is scored as it is")
    balance = None
    if world.size > 1:
        balance = Balance(next(iter(nets.values())), world, data.train, logger, config.process.straggler_share)
    statistics = make_statistics_loader(config, machine, dataset, world, task, data.train)
    data.opened.extend([statistics] if statistics else [])
    pruning = Pruning.of(PROJECT, process.directory)
    callbacks = [*([] if pruning is None else [pruning]), *make_callbacks(config)]
    intervals = (trainer.log_every, trainer.eval_every, trainer.save_every)
    steps = [parse_interval(interval, size / trainer.global_batch_size) for interval in intervals]
    every = Every(*(one and round(one) if state.rules < 2 else one for one in steps))
    run = Run(
        world, trainer, config.monitor, machine, every, logger, process.checkpoints, callbacks, process.stop,
        process.watch, buffers, epoch_samples=size, total_steps=total_steps, balance=balance, work=work,
        first_batch=data.train.first, statistics=statistics, stop_at_step=config.process.stop_at_step, train=data.train,
        train_set=dataset,
        scan=partial(make_eval_loader, config, machine, dataset, "train", world, data.train, True),
    )  # fmt: skip
    task.run = replace(task.run, total_steps=total_steps, training=run)
    return state, nets, run


def steps_of_run(trainer: TrainerConfig, epoch_samples: int, step: int, samples: int) -> int:
    """step, samples: done before a resume, perhaps with another batch size."""
    total_steps = count_steps(trainer, epoch_samples, step, samples)
    if step > total_steps:
        raise ConfigError(
            f"trainer.max_steps, trainer.max_epochs: they end after {total_steps:,} steps, and the run is at step "
            f"{step:,} already - give more"
        )
    return total_steps


def begin(
    process: Process, data: Data, state: TrainState, run: Run, payload: dict[str, Any] | None, title: str
) -> None:
    """Load the checkpoint, if there is one, and say what is trained where. From here each rank has its own random
    numbers."""
    world, logger = process.world, process.logger
    seed_rank(process.config, world.rank)
    if payload:
        load_payload(state, payload, process.config, run)
        payload.clear()  # `run` holds it too, to the end
        run.replicas.step = state.step
    for callback in run.callbacks:
        object.__setattr__(callback, "run", run)  # works for frozen dataclasses too
    run.notify("on_start", state)
    logger.say(title)
    gpus = world.gather(gpu_facts(world.device))
    if world.is_main:
        facts = machine_facts(world.device, gpus)
        logger.say(machine_line(facts))
        if unlike := record_machine(process.directory, facts):
            logger.warn(f"the run began on another machine, which rounds in its own way: {unlike}")
    if getattr(data.train.plan, "padded", False) and (norm := batch_norm(state.model)):
        logger.warn(
            "data.order.drop_last=false: an epoch's last batch is filled up with rows that the loss leaves out, but "
            f"the statistics of {norm} count them - drop_last=true fills no batch up"
        )
    changes = [*describe_transforms(process.config, data.sets["train"]), *unlike_splits(data.sets)]
    if state.rules >= 2 and (still := held_still(state.model)):
        names = ", ".join(name or "all of it" for name in still[:4]) + ", ..." * (len(still) > 4)
        changes.append(f"held in evaluation mode by the model, and left so: {names}")
    for line in what_is_trained(process.config, process.directory) if world.is_main else ():
        logger.say(line)
    describe(logger, run.machine, state.model, run, data.sets, data.train, changes, process.config.hardware)


def batch_norm(model: nn.Module) -> str | None:
    """Return the name of the first module that trains by statistics over the batch; None if there is none."""
    for name, module in model.named_modules():
        by_batch = isinstance(module, nn.modules.batchnorm._BatchNorm) or hasattr(module, "running_mean")
        if by_batch and module.training and not isinstance(module, nn.modules.instancenorm._InstanceNorm):
            return f"{name} ({type(module).__name__})"
    return None


def fit_and_score(
    process: Process, data: Data, state: TrainState, nets: dict[str, nn.Module], run: Run
) -> dict[str, Any]:
    """Train, then score the best weights. Returns result.json's content; of a run that was stopped its step."""
    config, logger, stop = process.config, process.logger, process.stop
    try:
        logger.begin(state.step, run.total_steps)
        with profiling(config.profiler, run, nets, data.train, bool(config.hardware.compile)) as batches:
            scores = partial(validate, vals=data.vals, run=run) if data.vals else None
            fit(nets, state, batches, scores, run)
        logger.end_bar()
        stop.finish_broadcast()
        if state.ended == "pruned":
            return {"step": state.step, "pruned": True}
        if stop.cause:
            return {"step": state.step}
        balanced = {} if run.balance is None else run.balance.report()
        data.train.close()
        final = final_scores(state, data.others, run)
        with process.watch.user_code("a callback's on_end", state.step):
            end_callbacks(run.callbacks, state, {key: value for key, value in final.items() if "/" in key})
        return final | balanced
    except Stopped:  # during the final scores: a resume computes them again
        return {"step": state.step}


def end_callbacks(callbacks: Iterable[Any], state: Any, scores: dict[str, float]) -> None:
    for on_end in overriding(callbacks, "on_end"):
        takes_scores = len(inspect.signature(on_end).parameters) > 1
        on_end(*((state, scores) if takes_scores else (state,)))


def collective_timeout_s(timeout_s: float | None) -> float:
    """Longer than the hang watchdog waits, as that names the stuck rank; no timeout is 7 days, as torch needs one."""
    return 7 * 24 * 3600.0 if timeout_s is None else 2 * Watch.USER_TIMEOUTS * timeout_s + 60


def make_logger(run_dir: Path, config: Config, world: World, payload: dict[str, Any], began: float) -> Logger:
    """Returns rank 0's RunLogger, which goes on from the checkpoint's payload; on other ranks the null logger."""
    if not world.is_main:
        return Logger()
    record_start(run_dir, began)
    timeout_s = seconds(config.process.timeout)
    # the hang watchdog allows Watch.SLOW_TIMEOUTS * timeout_s
    most_s = math.inf if timeout_s is None else (Watch.SLOW_TIMEOUTS - 1) * timeout_s
    return RunLogger(PROJECT, run_dir, config.logger, payload["step"], most_s, payload.get("logged_lines"))


def load_payload(state: TrainState, payload: dict[str, Any], config: Config, run: Run) -> None:
    """Load the checkpoint's payload into `state`; raises ConfigError where it does not fit the config."""
    kind = str(config.optimizer["_target_"]).rpartition(".")[2]
    check_optimizer(payload["optimizer"]["param_groups"], state.optimizer, kind)
    check_trained(payload.get("trained", state.trained), state.trained)  # checkpoints of older versions lack it
    score = state.monitor
    payload = laid_out(payload, state.model, state.optimizer)
    # not the rate, which the schedule sets: a run that has no step left saves that of its last one again
    options = {key.rpartition(".")[2] for key in leaves(config.optimizer, "optim")} - {"lr"} | {"fused"}
    load_weights(state.model, payload["model"], "the checkpoint")
    if state.ema is not None:
        load_weights(state.ema, weights_of(payload), "the checkpoint")
    if "task" in payload:  # checkpoints of older versions lack it: their tasks had no state
        load_weights(state.task, payload["task"], "the checkpoint", "task")
    payload["optimizer"] = unmapped(payload["optimizer"], run.world.device)
    try:
        state.load(payload, run.world, options=options)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f"the checkpoint does not fit this run: {error_line(error)}") from error
    schedule, step = state.schedule, state.step
    if line := stretched(schedule, payload["schedule"], step):
        run.logger.warn(line)
    if skipped := step - payload["schedule"].get("updates", step):  # older versions did not count them
        run.logger.warn(
            f"optim.schedule: skipped steps count from here on, {skipped:,} until now: the learning rate goes on as "
            f"that of step {step + 1:,}, not {step + 1 - skipped:,}"
        )
    if state.monitor != score:
        before, after = " ".join(state.monitor), " ".join(score)
        run.logger.warn(f"monitor: {before} until now, {after} from here on: the best score begins anew")
        state.monitor, state.best, state.best_score, state.stale = score, [], None, 0
        if isinstance(schedule.factor, Plateau):
            schedule.factor.best, schedule.factor.stale = None, 0
    state.best = [entry for entry in state.best if run.checkpoints.best_path(entry).exists()]


def finish(
    run_dir: Path, world: World, logger: Logger, stop: StopRequest, result: dict[str, Any], seconds: float
) -> None:
    """Rank 0 writes result.json, status.json, W&B's summary and a short table for the user."""
    if not world.is_main:
        return
    scores = {key: value for key, value in result.items() if "/" in key}
    logger.result(result)
    seconds = round(seconds + read_status(run_dir).get("seconds", 0.0), 2)
    if result.get("pruned"):
        write_status(run_dir, "pruned", step=result["step"], seconds=seconds)
        logger.say(f"pruned by the search at step {result['step']}: {shown(run_dir)}")
        return
    if stop.cause:
        by = WANDB if stop.cause in ("SIGTERM", "SIGINT") and stopped_by_wandb() else stop.cause
        state = "interrupted" if by in ("SIGINT", WANDB) else "preempted"
        write_status(run_dir, state, signal=by, seconds=seconds)
        logger.say(f"stopped by {by} at step {result['step']}, saved; go on with: resume={shown(run_dir)}")
        return
    write_json(run_dir / RESULT, result | {"seconds": seconds})
    write_status(run_dir, "finished", seconds=seconds)
    step, best = result["step"], result.get("best_step")
    whose = f"{'last' if step else 'fresh'} weights, step {step:,}" if best is None else f"best weights, step {best:,}"
    rows = [
        f"  {key:<20} {value:<9.4f} {'in training, until step ' + f'{step:,}' if key.startswith('train/') else whose}"
        for key, value in scores.items()
    ]
    logger.say("\n".join([f"finished {step:,} steps in {seconds:.1f} s", *rows, f"  {shown(run_dir)}"]))
