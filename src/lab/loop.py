"""The training loop. Edit this file to change the order of training; a new method is a file in lab/tasks.

    while steps are left:
        the task's train_step -> optimizer_step: micro-batches -> losses -> backward (gradients averaged over ranks on the
                                 last) -> unscale, clip, update                                       lab/optimizer_step.py
        at log_every / eval_every / save_every: values are copied to the host        lab/logging.py, evaluation.py
        a signal or max_time on any rank: all ranks save a checkpoint and stop after the same step

Nothing in train_step waits for the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from lab.average import scored_model, training_mode
from lab.callbacks.base import overriding
from lab.logging import check_finite, check_has_trained, log_train
from lab.optimizer_step import OptimizerStep
from lab.options import TrainerConfig
from lab.pending import actions_after_step, is_finished, restore_pending
from lab.state import RunContext, TrainState, on_all_ranks
from lab.step_graph import as_graph
from lab.tasks.base import Batch, overrides
from samebits.data import Clock, Loader
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.host import collect_garbage, no_garbage_collection
from samebits.steps import StepRNG, uses_no_rng
from samebits.world import World

Validate = Callable[[TrainState], bool]  # lab.evaluation.validate, of a run and its sets


def train_step(
    nets: Mapping[str, nn.Module],
    state: TrainState,
    batches: Iterator[Batch],
    trainer: TrainerConfig,
    machine: Hardware,
    world: World,
    after_all_reduce: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """One optimizer step. Returns 0-d tensors on the device: loss, grad_norm, the task's terms, and non_finite where a
    step may be left out.

    nets: {objective: its LossModule, wrapped}. batches: micro-batches whose sizes repeat machine.micro_batch_sizes.
    after_all_reduce: called after each backward pass that averages the gradients over the ranks.
    """
    task = state.task
    micro_batches = itertools.islice(batches, len(machine.micro_batch_sizes))
    with StepRNG(state.step, world.device, may_draw(state)) as step_rng:
        step_rng.use_shared()  # of a schedule that draws
        state.schedule.set_rates(state.step)
        step_rng.use_per_rank()
        optimizer_step = OptimizerStep(nets, state, trainer, machine, world, step_rng, after_all_reduce)
        values = task.train_step(state.step, micro_batches, optimizer_step)
        if not (optimizer_step.norms and values):
            raise ConfigError(f"task: {type(task).__name__}.train_step must call optimizer_step, and return its values")
        if next(micro_batches, None) is not None:
            raise ConfigError(f"task: {type(task).__name__}.train_step has left micro-batches of its step over")
        return optimizer_step.end_step(values)


def may_draw(state: TrainState) -> bool:
    """Whether random numbers may be drawn between a gradient and the end of the step: not by torch's optimizers, nor by
    optimizers, schedules and tasks that say so (`uses_rng = False`); by any other, and by what another task does there."""
    acts = any(overrides(state.task, name) for name in ("on_step_end", "project", "train_step"))
    return not uses_no_rng(state.schedule, state.optimizer.values(), [state.task] if acts else [])


@no_garbage_collection()
def fit(
    nets: Mapping[str, nn.Module], state: TrainState, train: Loader, validate: Validate | None, run: RunContext
) -> None:
    """Train from state.step until `is_finished`, or until a stop is asked for. What is due after a step is a list in the
    state, so in each checkpoint: a run that goes on from one begins with the rest of the list.

    validate: scores the validation sets, and says whether the state is among the best; None: there are none.
    """
    batches = iter(train)
    clock = Clock(train, run.logger, run.work.speeds)
    trainer = run.trainer
    restore_pending(state, validate is not None, run)
    run_pending(state, validate, run, clock)
    before_step, on_step = (overriding(run.callbacks, event) for event in ("before_step", "on_step"))
    step = train_step if run.balance is None else run.balance.timed(train_step)
    if run.hardware.cuda_graph:
        step = as_graph(step, state, run, may_draw(state), called=bool(before_step or on_step))
    for net in nets.values():
        training_mode(net) if state.rules >= 2 else net.train()
    run.watchdog.beat("training", state.step, slow=True)  # a first step may compile
    while not (is_finished(state, run) or run.stop.cause):
        for call in before_step:
            call(state)
        values = step(nets, state, batches, trainer, run.hardware, run.world)
        state.step += 1
        state.samples += trainer.global_batch_size
        run.watchdog.beat("training", state.step)
        run.checkpoints.check(state.payload)  # stops the run if a checkpoint could not be written
        state.add_to_sums(values)
        run.logger.progress(state.step)
        if on_step:
            with run.watchdog.user_code("a callback's on_step", state.step):
                for call in on_step:
                    call(state)
        collect_garbage(state.step)
        if state.samples // run.epoch_samples > (state.samples - trainer.global_batch_size) // run.epoch_samples:
            clock.end_epoch(state.step)
        state.pending = actions_after_step(state, validate is not None, run)
        run.stop.agree(run.world)
        run_pending(state, validate, run, clock)
    run.watchdog.beat("saving", state.step, slow=True)
    if not run.stop.cause:
        check_has_trained(state, run)
    run.checkpoints.wait(state.best)  # the run ends, and is scored, with all checkpoints on the disk


def run_pending(state: TrainState, validate: Validate | None, run: RunContext, clock: Clock) -> None:
    """Do what is to be done before the next step. A checkpoint has what is left then; a stop leaves the evaluation."""
    if "log" in state.pending:
        state.pending.remove("log")
        log_train(state, run, clock)
    if not (state.pending or run.stop.cause):
        return
    with clock.paused():
        if "score" in state.pending and not run.stop.cause:
            assert validate is not None  # else restore_pending and actions_after_step owe no score
            score(state, validate, run)
        if "save" in state.pending and state.step == run.stop_at_step and not is_finished(state, run):
            run.stop.at_step()
        if "save" in state.pending or run.stop.cause:
            state.pending = ["score", "save"] if "score" in state.pending else []
            save(state, run, best=False)


def score(state: TrainState, validate: Validate, run: RunContext) -> None:
    """Evaluate; save the state if it is among the best."""
    check_finite(state, run)
    check_replicas(state, run)
    if validate(state):
        save(state, run, best=True)


def save(state: TrainState, run: RunContext, best: bool) -> None:
    """Save a checkpoint; all ranks call this. Rank 0 writes it; of a sharded model each rank writes its own shards.

    With process.save_async it is written beside the loop, from a copy of the state in host memory."""
    run.watchdog.beat("saving", state.step, slow=True)
    check_finite(state, run)
    check_replicas(state, run)  # before all get rank 0's buffers
    held = nn.ModuleDict({"model": state.model, "task": state.task})
    run.world.broadcast_buffers(held)
    scored_model(state, run)  # copies the model's buffers into the average
    state.logged_lines = run.logger.lines
    run.buffers.check_finite(held, state.step)
    if warning := run.buffers.unsaved():
        run.logger.warn(warning)
    payload = state.payload(run.world.gather_bytes(state.rank_row(run.world.device)))
    (run.checkpoints.save_best if best else run.checkpoints.save_last)(payload)
    run.watchdog.beat("training", state.step)


def check_replicas(state: TrainState, run: RunContext) -> None:
    """RunFailed if ranks do not hold the same, once the task has gathered what each holds of its own samples."""
    with torch.no_grad():
        state.task.sync_buffers()
    run.replicas.check(on_all_ranks(state), state.step, run.world)
