"""The training loop. Edit this file to change the order of training; a new training method is a file in lab/tasks.

    until the last step:
        the task's train_step calls optimizer_step: forward -> losses -> backward (the ranks average gradients
                           once, after the last micro-batch) -> unscale, clip, update   lab/optimizer_step.py
        every log_every, eval_every, save_every steps: log, evaluate, save           lab/logging.py, evaluation.py
        after a signal on any rank, or max_time: all ranks save a checkpoint after the same step and stop

A step does not wait for the device (exceptions: lab/optimizer_step.py). Only logs, evaluations and saves copy values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from lab.average import prepare_evaluation_model, set_training_mode
from lab.callbacks.base import overridden_methods
from lab.logging import check_finite, check_has_trained, log_train
from lab.optimizer_step import OptimizerStep
from lab.options import TrainerConfig
from lab.pending import actions_after_step, due, is_finished, restore_pending
from lab.state import RunContext, TrainState, replicated_values
from lab.step_graph import as_graph
from lab.tasks.base import Batch, overrides
from samebits.checkpoints import no_new_parameters
from samebits.data import Loader, SpeedMeter
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.host import collect_garbage, no_garbage_collection
from samebits.steps import StepRNG, uses_no_rng, with_seed_check
from samebits.world import World

Validate = Callable[[TrainState], bool]  # lab.evaluation.validate with its other arguments bound


def train_step(
    loss_modules: Mapping[str, nn.Module],
    state: TrainState,
    batches: Iterator[Batch],
    trainer: TrainerConfig,
    hardware: Hardware,
    world: World,
    after_all_reduce: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """Take one optimizer step. Return 0-d tensors on the device: loss, the task's other losses, grad_norm and, if
    steps may be skipped, non_finite (1.0: skipped).

    loss_modules: {objective: LossModule, wrapped by DDP and torch.compile}; each objective has its own optimizer.
    batches: iterator over micro-batches; this step takes one for each of hardware.micro_batch_sizes.
    after_all_reduce: called after each backward pass in which the ranks average their gradients."""
    task = state.task
    micro_batches = itertools.islice(batches, len(hardware.micro_batch_sizes))
    with StepRNG(state.step, world.device, may_draw_outside_losses(state)) as step_rng:
        step_rng.use_shared()  # a schedule may draw random numbers
        state.schedule.set_rates(state.step)
        step_rng.use_per_rank()
        optimizer_step = OptimizerStep(loss_modules, state, trainer, hardware, world, step_rng, after_all_reduce)
        values = task.train_step(state.step, micro_batches, optimizer_step)
        if not (optimizer_step.norms and values):  # norms has an entry for each update
            raise ConfigError(f"task: {type(task).__name__}.train_step must call optimizer_step and return its values")
        if next(micro_batches, None) is not None:
            raise ConfigError(f"task: {type(task).__name__}.train_step must use all micro-batches of the step")
        with torch.set_grad_enabled(False):
            return optimizer_step.end_step(values)


def may_draw_outside_losses(state: TrainState) -> bool:
    """Return whether code outside the losses may draw random numbers in a step: the schedule, the optimizers, or the
    task's train_step, on_step_end or project. Torch's optimizers draw none, nor do classes with `uses_rng = False`."""
    task, others = state.task, list(state.schedule.own_factors.values())
    if overrides(task, "on_step_end") or overrides(task, "project") or overrides(task, "train_step"):
        others.append(task)
    return not uses_no_rng(state.schedule, state.optimizer.values(), others)


@no_garbage_collection()
def fit(
    loss_modules: Mapping[str, nn.Module], state: TrainState, train: Loader, validate: Validate | None, run: RunContext
) -> None:
    """Train from state.step until `is_finished`, or until a stop is requested (by a signal or process.max_time).

    state.pending lists the actions that are due (log, score, save). A resumed run first runs those of its checkpoint.
    validate: scores the validation sets and returns whether the state is among the best; None: no validation sets."""
    batches = iter(train)
    clock = SpeedMeter(train, run.logger, run.cost_per_sample.speeds, state.samples, state.passed)
    trainer = run.trainer
    restore_pending(state, validate is not None, run)
    run_pending(state, validate, run, clock)
    before_step, on_step = (overridden_methods(run.callbacks, event) for event in ("before_step", "on_step"))
    take_step = train_step if run.rank_timing is None else run.rank_timing.timed(train_step)  # finds slow ranks
    if run.hardware.cuda_graph:
        take_step = as_graph(take_step, state, run, may_draw_outside_losses(state), bool(before_step or on_step))
    names = f"{type(state.model).__name__} or {type(state.task).__name__}"
    take_next_step = with_seed_check(no_new_parameters(state.model)(take_step), names, run.logger.warn)
    for net in loss_modules.values():
        set_training_mode(net) if state.rules >= 2 else net.train()  # older runs: lab.options.RULES
    run.watchdog.beat("training", state.step, slow=True)  # the first step may compile
    while not (is_finished(state, run) or run.stop.cause):
        for call in before_step:
            call(state)
        values = take_next_step(loss_modules, state, batches, trainer, run.hardware, run.world)
        take_next_step = take_step  # the checks are only for the first step
        state.step += 1
        state.samples += trainer.global_batch_size
        run.watchdog.beat("training", state.step)
        # raise if a write in the background has failed; in the first step, allocate host memory for the copies
        run.checkpoints.prepare_and_check(state.payload)
        state.add_to_sums(values)
        run.logger.progress(state.step)
        if on_step:
            with run.watchdog.user_code("a callback's on_step", state.step):
                for call in on_step:
                    call(state)
        collect_garbage(state.step)
        if state.samples % run.samples_per_epoch < trainer.global_batch_size:  # an epoch has ended in this step
            clock.end_epoch(state.step)
        state.pending = actions_after_step(state, validate is not None, run)
        run.stop.agree(run.world)  # sets run.stop.cause on all ranks after the same step
        run_pending(state, validate, run, clock)
    run.watchdog.beat("saving", state.step, slow=True)
    if not run.stop.cause:
        check_has_trained(state, run)
    run.checkpoints.wait(state.best)  # the final scores read the best checkpoint


def run_pending(state: TrainState, validate: Validate | None, run: RunContext, clock: SpeedMeter) -> None:
    """Run the actions in state.pending. If a stop is requested, log and save, but leave "score" pending: an evaluation
    may take long, and the resumed run begins with it."""
    if "log" in state.pending:
        state.pending.remove("log")
        log_train(state, run, clock)
    if not (state.pending or run.stop.cause):
        return
    with clock.paused():
        if "score" in state.pending and not run.stop.cause:
            assert validate is not None  # otherwise "score" is never pending
            validate_and_save_best(state, validate, run)  # removes "score", unless a stop has interrupted it
        if "save" in state.pending and state.step == run.stop_at_step and not is_finished(state, run):
            run.stop.request_at_step()  # process.stop_at_step; the save below is the last action
        if "save" in state.pending or run.stop.cause:
            planned = "score" in state.pending or due(state.step, run.save_every) or is_finished(state, run)
            if run.stop.cause and not planned:  # this save broadcasts rank 0's buffers; an unstopped run would not
                run.replica_checks.warn_of_own_buffers(state.model, state.task, run.world, run.logger.warn)
            state.pending = ["score", "save"] if "score" in state.pending else []
            save(state, run, best=False)


def validate_and_save_best(state: TrainState, validate: Validate, run: RunContext) -> None:
    """Evaluate, and save the state if it is among the best."""
    check_finite(state, run)
    sync_and_check_replicas(state, run)
    if validate(state):
        save(state, run, best=True)


def save(state: TrainState, run: RunContext, best: bool) -> None:
    """Save a checkpoint; all ranks call this. Rank 0 writes it; with FSDP each rank writes its own shards.

    With process.save_async it is written in the background, from a copy of the state in host memory.
    best: True adds it to the best checkpoints (trainer.keep_best), False to the last ones, of which two are kept."""
    run.watchdog.beat("saving", state.step, slow=True)
    check_finite(state, run)
    sync_and_check_replicas(state, run)  # before the broadcast, which hides differences
    modules = nn.ModuleDict({"model": state.model, "task": state.task})
    run.world.broadcast_buffers(modules)  # BatchNorm's statistics differ by rank
    prepare_evaluation_model(state, run)  # copies the model's buffers into state.ema, which is saved
    state.logged_lines = run.logger.lines
    run.buffer_checks.check_finite(modules, state.step)
    if warning := run.buffer_checks.unsaved():
        run.logger.warn(warning)
    payload = state.payload(run.world.gather_bytes(state.rank_row(run.world.device)))
    (run.checkpoints.save_best if best else run.checkpoints.save_last)(payload)
    run.watchdog.beat("training", state.step)


def sync_and_check_replicas(state: TrainState, run: RunContext) -> None:
    """Call Task.sync_buffers. Raise RunFailed if weights, optimizer states or task buffers differ between ranks."""
    with torch.no_grad():
        state.task.sync_buffers()
    run.replica_checks.check(replicated_values(state), state.step, run.world)
