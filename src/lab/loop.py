"""The training loop. Edit this file to change the order of training; a new method is a file in lab/tasks.

    while steps are left:
        the task's train_step -> descend: micro-batches -> losses -> backward (gradients averaged over ranks on the
                                 last) -> unscale, clip, update
        at log_every / eval_every / save_every: values are copied to the host
        a signal or max_time on any rank: all ranks save a checkpoint and stop after the same step

Nothing in train_step waits for the device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from engine.data import Clock, Loader
from engine.errors import ConfigError, RunFailed
from engine.host import collect_garbage, no_garbage_collection
from engine.private import is_torchs_own, lean_step
from engine.ranks import (
    Hardware,
    StepNumbers,
    Stopped,
    World,
    all_sum,
    any_rank,
    average_in,
    broadcast_buffers,
    compile_report,
    for_evaluation,
    gather,
    global_norm,
    local_parts,
    make_autocast,
    name_unused,
    on_shards,
    rng_state,
    set_rng_state,
    to_host,
    unless,
)
from lab.callbacks.base import overriding
from lab.checks import applied, check_losses, check_per_sample, check_terms, explains_mistakes, first_samples
from lab.groups import TrainerConfig
from lab.metrics.base import as_metric
from lab.optim import draws_nothing
from lab.owed import due_after, ended, out_of_patience, take_up
from lab.state import Run, TrainState, averaged, may_skip, on_all_ranks
from lab.tasks.base import Batch, Losses, Task

SMALLEST_SCALE = 1e-3  # fp16's loss scale begins at 65,536; each step with inf or NaN gradients halves it


@explains_mistakes
def forward_loss(model: nn.Module, task: Task, batch: Batch, objective: str = "") -> tuple[Losses | Tensor, Any]:
    """Returns the task's (losses, output), in training and in evaluation: see lab.tasks.base.Task.losses."""
    return getattr(task, f"{objective}_losses" if objective else "losses")(model, batch)


class Objective(nn.Module):
    """One objective of the task, called with a batch: what DDP wraps, the compiler compiles and trainer=dp copies."""

    def __init__(self, model: nn.Module, task: Task, name: str = "") -> None:
        super().__init__()
        self.model, self.task, self.name = model, task, name

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        found = forward_loss(self.model, self.task, batch, *([self.name] if self.name else []))
        if not (isinstance(found, tuple) and len(found) == 2):
            method = f"{type(self.task).__name__}.{self.name and f'{self.name}_'}losses"
            raise ConfigError(f"task: {method} returned a {type(found).__name__}; it must return (losses, output)")
        losses, output = found
        return {"loss": losses} if isinstance(losses, Tensor) else dict(losses), output

    def no_sync(self) -> AbstractContextManager[Any]:
        """The sharded model's no_sync(); does nothing for other models, whose DDP wrapper has its own."""
        no_sync: Any = getattr(self.model, "no_sync", nullcontext)
        return no_sync()


def train_step(
    nets: Mapping[str, nn.Module],
    state: TrainState,
    batches: Iterator[Batch],
    trainer: TrainerConfig,
    machine: Hardware,
    world: World,
) -> dict[str, Tensor]:
    """One optimizer step. Returns 0-d tensors on the device: loss, grad_norm, the task's terms, and non_finite where a
    step may be left out.

    nets: {objective: wrapped module}. batches: micro-batches whose sizes repeat machine.micro_batch_sizes.
    """
    moved: list[bool | Tensor] = []

    def descend_on(objective: str, batches: Iterable[Batch]) -> dict[str, Tensor]:
        if objective not in nets:
            raise ConfigError(
                f"task: {type(state.task).__name__}.train_step asks for the objective {objective!r}; its `trained` has "
                f"{', '.join(map(repr, nets))}"
            )
        numbers.own()
        values, moves = descend(nets[objective], state, objective, batches, trainer, machine, world, numbers)
        moved.append(moves)
        return values if not objective else {f"{objective}/{name}": value for name, value in values.items()}

    own = itertools.islice(batches, len(machine.micro_batch_sizes))
    with StepNumbers(state.step, world.device, may_draw(state)) as numbers:
        values = state.task.train_step(state.step, own, descend_on)
        if not (moved and values):
            raise ConfigError(f"task: {type(state.task).__name__}.train_step must call descend, and return its values")
        if next(own, None) is not None:
            raise ConfigError(f"task: {type(state.task).__name__}.train_step has left micro-batches of its step over")
        state.schedule.step(moved)
    return values


def may_draw(state: TrainState) -> bool:
    """Whether random numbers may be drawn between a gradient and the end of the step: not by torch's optimizers and
    this project's schedules; by any other, and by what a task does there."""
    task = type(state.task)
    plain = task.updated is Task.updated and task.train_step is Task.train_step
    return not (plain and draws_nothing(state.schedule) and all(map(is_torchs_own, state.optimizers())))


def descend(
    net: nn.Module,
    state: TrainState,
    objective: str,
    batches: Iterable[Batch],
    trainer: TrainerConfig,
    machine: Hardware,
    world: World,
    numbers: StepNumbers,
) -> tuple[dict[str, Tensor], bool | Tensor]:
    """Forward, backward, clip and update for one objective. Returns (its values, whether its weights moved: `update`).

    The loss is the sum over samples divided by this rank's samples in the step, so micro-batches of unequal size are
    weighted correctly, and DDP's mean over ranks gives the mean over the global batch.
    """
    scaler, optimizer, task = state.scaler, state.optimizer_of(objective), state.task
    sizes, share = machine.micro_batch_sizes, sum(machine.micro_batch_sizes)
    autocast = make_autocast(machine)
    totals: dict[str, Tensor] = {}
    counted = None  # sum of the samples' weights, for a task that weights them
    with only(optimizer, state) if objective else nullcontext():
        for i, (size, batch) in enumerate(as_many(batches, sizes, task)):
            with nullcontext() if i == len(sizes) - 1 else without_sync(net):
                with autocast():
                    losses = net(batch)[0]  # logits of a large vocabulary would be held while the next are computed
                    weights = task.weights(batch)
                check_losses(task, losses, size, None if objective else task.terms)
                if weights is not None:
                    losses = {name: value * weights for name, value in losses.items()}
                    counted = weights.sum() if counted is None else counted + weights.sum()
                means = {name: value.sum() / share for name, value in losses.items()}
                loss = means["loss"]
                (scaler.scale(loss) if scaler else loss).backward()
            for name, value in means.items():
                totals[name] = totals[name] + value.detach() if name in totals else value.detach()
    numbers.same()  # what moves the weights must move them alike on all ranks
    if scaler:
        scaler.unscale_(optimizer)  # before clipping: clip_norm limits the unscaled gradients
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = [p for p in trained if p.grad is not None]
    if len(parameters) < len(trained):
        name_unused(net, [p for p in trained if p.grad is None], state.step)
    gradients = [p.grad for p in parameters]
    if counted is not None:  # from the mean over samples to the mean weighted by task.weights, over all ranks
        counted = all_sum(counted.detach().clone(), world)
        factor = torch.where(counted > 0, share * world.size / counted, 0.0)
        torch._foreach_mul_(
            local_parts(gradients), factor.to(gradients[0].device)
        )  # with FSDP's CPU offload they are on the host
        totals = {name: value * factor for name, value in totals.items()}
    norm = clip(gradients, trainer.clip_norm)
    non_finite = None
    if may_skip(trainer, scaler):
        # all ranks hold the averaged gradients, so all see the same norm and take the same branch
        non_finite = norm.mul(0).ne_(0).to(torch.float32)  # 1.0 if inf or NaN (0 * inf is NaN), else 0.0
    moves = update(state, optimizer, trainer, non_finite)
    for p in parameters:
        p.grad = None
    totals["grad_norm"] = norm
    if non_finite is not None:  # a skipped step does not count in the logged means
        totals = {name: torch.where(non_finite > 0, 0.0, value) for name, value in totals.items()}
        totals["non_finite"] = non_finite
    device = totals["loss"].device  # with FSDP's CPU offload the gradients, so the norm, are on the host
    return {name: value.to(device) for name, value in totals.items()}, moves


def as_many(batches: Iterable[Batch], sizes: list[int], task: Task) -> Iterator[tuple[int, Batch]]:
    """(size, micro-batch), one for each size."""
    given = iter(batches)
    for size in sizes:
        batch = next(given, None)
        if batch is None:
            raise ConfigError(
                f"task: {type(task).__name__}.train_step has given descend fewer than the {len(sizes)} micro-batches "
                "of a step: for several objectives it must keep them, list(batches)"
            )
        yield size, batch


def without_sync(net: nn.Module) -> AbstractContextManager[Any]:
    """No all-reduce in this block: DDP averages the gradients over ranks once, with the last micro-batch."""
    no_sync: Any = getattr(net, "no_sync", nullcontext)
    return no_sync()


@contextmanager
def only(optimizer: Optimizer, state: TrainState) -> Iterator[None]:
    """In this block only this optimizer's parameters require a gradient; those of the other optimizers do not."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    others = [p for group in state.optimizer.param_groups for p in group["params"] if id(p) not in own]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)


def clip(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Clip the gradients in place to a global L2 norm of `limit` (Pascanu et al. 2013). Returns the norm before."""
    norm = global_norm(gradients)
    if limit is not None:
        torch._foreach_mul_(local_parts(gradients), (norm + 1e-6).reciprocal_().mul_(limit).clamp_(max=1.0))
    return norm


@torch.no_grad()
def update(state: TrainState, optimizer: Optimizer, trainer: TrainerConfig, non_finite: Tensor | None) -> bool | Tensor:
    """Optimizer step, EMA and task.updated. Returns whether the weights moved: on the device, 0-d, if the host does not
    know.

    non_finite: with fp16 and trainer.non_finite=skip, 0-d, 1 where a gradient is not finite. Then the step is left out:
    by the fused kernel itself; for an optimizer without one the host waits for the device to say so.
    """
    on_device = state.schedule.on_device
    moves = non_finite is None or on_device or not to_host(non_finite)
    if moves:
        if on_device:
            optimizer.found_inf = non_finite  # type: ignore[attr-defined]
        with on_shards(optimizer):
            lean_step(optimizer)  # not scaler.step: gradients are unscaled above, and the norm says if they are finite
        skipped = non_finite if on_device else None
        if state.ema is not None and (optimizer is state.optimizer or trains(optimizer, state.model)):
            assert trainer.ema_decay is not None
            means, weights = (local_parts(part.parameters()) for part in (state.ema, state.model))
            average_in(means, weights, 1 - trainer.ema_decay, skipped)
        if type(state.task).updated is not Task.updated:
            with unless(skipped, state.task):
                state.task.updated(state.model)
    if state.scaler:
        state.scaler.update()
    return non_finite == 0 if non_finite is not None and on_device else moves


def trains(optimizer: Optimizer, model: nn.Module) -> bool:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in own for p in model.parameters())


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[Batch],
    world: World,
    machine: Hardware,
    lengths: Callable[[int], tuple[int, int]],
    observers: Iterable[Callable[[Any, Batch], None]] = (),
) -> dict[str, float]:
    """Returns {loss, <term>, <metric>, ...}: means over the samples of all ranks, each counted once. model: unwrapped.

    lengths(k) -> (samples of the k-th batch, how many of them count, from the first); the others are padding that
    keeps the ranks in step. observers: called with (output, batch), padding cut off.
    """
    was_training = model.training, task.training
    net = for_evaluation(Objective(model, task).eval(), machine)
    broadcast_buffers(net, world)
    autocast = make_autocast(machine)
    metrics = {name: as_metric(metric) for name, metric in task.metrics.items()}
    whole = {name: metric for name, metric in metrics.items() if hasattr(metric, "compute")}
    means = {name: metric for name, metric in metrics.items() if name not in whole}
    names = ["loss", *task.terms, *means]
    precise = torch.float32 if world.device.type == "mps" else torch.float64
    sums = torch.zeros(len(names) + 1, dtype=precise, device=world.device)
    for metric in whole.values():
        metric.reset()
    for k, batch in enumerate(batches):
        size, counted = lengths(k)
        with autocast():
            losses, output = net(batch)
            weights = task.weights(batch)
        check_terms(task, losses, size, task.terms)
        values = [losses[name] for name in ("loss", *task.terms)]
        for name, mean in means.items():
            values.append(applied(mean, f"task.metrics.{name}", output, batch))
            check_per_sample(values[-1], size, f"task.metrics.{name}")
        rows = [value[:counted].to(precise) for value in values]
        if weights is not None:
            rows = [row * weights[:counted] for row in rows]
        sums[:-1] += torch.stack([row.sum() for row in rows])
        sums[-1] += counted if weights is None else weights[:counted].sum()
        if counted:
            own = first_samples(output, size, counted), first_samples(batch, size, counted)
            for name, metric in whole.items():
                applied(metric.update, f"task.metrics.{name}", *own)
            for observe in observers:
                observe(*own)
    all_sum(sums, world)
    model.train(was_training[0]), task.train(was_training[1])
    *totals, samples = to_host(sums)
    scores = {name: total / samples if samples else math.nan for name, total in zip(names, totals)}
    for name, metric in whole.items():
        score = metric.compute(world)
        scores |= {f"{name}/{k}": v for k, v in score.items()} if isinstance(score, Mapping) else {name: score}
    return scores


@no_garbage_collection()
def fit(nets: Mapping[str, nn.Module], state: TrainState, train: Loader, vals: Mapping[str, Loader], run: Run) -> None:
    """Train from state.step until `ended`, or until a stop is asked for. What is due after a step is a list in the
    state, so in each checkpoint: a run that goes on from one begins with the rest of the list.

    vals: the validation sets, by the name of their split.
    """
    batches = iter(train)
    clock = Clock(train, run.logger, run.work.speeds)
    trainer = run.trainer
    take_up(state, vals, run)
    pay(state, vals, run, clock)
    before_step, on_step = (overriding(run.callbacks, event) for event in ("before_step", "on_step"))
    step = train_step if run.balance is None else run.balance.timed(train_step)
    for net in nets.values():
        net.train()
    run.watch.beat("training", state.step, slow=True)  # a first step may compile
    while not (ended(state, run) or run.stop.cause):
        for call in before_step:
            call(state)
        values = step(nets, state, batches, trainer, run.machine, run.world)
        state.step += 1
        state.samples += trainer.global_batch_size
        run.watch.beat("training", state.step)
        run.checkpoints.check()  # stops the run if a checkpoint could not be written
        for name, value in values.items():
            state.totals[name] = state.totals[name] + value if name in state.totals else value
            state.counts[name] = state.counts.get(name, 0) + 1
        run.logger.progress(state.step)
        if on_step:
            with run.watch.user_code("a callback's on_step", state.step):
                for call in on_step:
                    call(state)
        collect_garbage(state.step)
        if state.samples // run.epoch_samples > (state.samples - trainer.global_batch_size) // run.epoch_samples:
            clock.end_epoch(state.step)
        state.owes = due_after(state, vals, run)
        run.stop.agreed(run.world)
        pay(state, vals, run, clock)
    run.watch.beat("saving", state.step, slow=True)
    run.checkpoints.wait(state.best)  # the run ends, and is scored, with all checkpoints on the disk


def pay(state: TrainState, vals: Mapping[str, Loader], run: Run, clock: Clock) -> None:
    """Do what is to be done before the next step. A checkpoint has what is left then; a stop leaves the evaluation."""
    if "log" in state.owes:
        state.owes.remove("log")
        log_train(state, run, clock)
    if not (state.owes or run.stop.cause):
        return
    with clock.paused():
        if "score" in state.owes and not run.stop.cause:
            score(state, vals, run)
        if "save" in state.owes and state.step == run.trainer.stop_at_step and not ended(state, run):
            run.stop.at_step()
        if "save" in state.owes or run.stop.cause:
            state.owes = ["score", "save"] if "score" in state.owes else []
            save(state, run, best=False)


def check_finite(state: TrainState, run: Run) -> dict[str, int]:
    """Returns {objective: steps since the last log that were left out}, with trainer.non_finite=skip and with fp16.
    Where none may be, raises RunFailed, on all ranks, if gradients were inf or NaN: so is their summed norm."""
    skips = may_skip(run.trainer, state.scaler)
    # before a resume that ended the skipping steps may have been left out, too
    counts, norms = ([n for n in state.totals if n.rpartition("/")[2] == key] for key in ("non_finite", "grad_norm"))
    names = counts if skips else [*counts, *norms]
    found = to_host(torch.stack([state.totals[name] for name in names])) if names else []
    if not (skips or all(map(math.isfinite, found[len(counts) :]))):
        raise RunFailed(
            f"gradients were not finite within the steps {state.logged_step + 1} to {state.step}; "
            "debug=nan names the module, trainer.non_finite=skip leaves such steps out, "
            "a lower optim.lr or trainer.clip_norm may prevent them"
        )
    if state.scaler and state.scaler.get_scale() < SMALLEST_SCALE:
        raise RunFailed(
            f"fp16: the loss scale has fallen below {SMALLEST_SCALE:g} by step {state.step}, as no step was finite; "
            "hardware.precision=bf16 has the range of fp32, a lower optim.lr may help too"
        )
    return {name.rpartition("/")[0]: int(count) for name, count in zip(counts, found)}


def log_train(state: TrainState, run: Run, clock: Clock) -> None:
    """Log the means since the last log over all ranks: one all-reduce and one copy to the host for all values."""
    skipped = check_finite(state, run)
    names = [name for name in state.totals if name.rpartition("/")[2] != "non_finite"]
    means = torch.stack([state.totals[name].float() for name in names])
    own = means.new_empty(0) if run.balance is None else run.balance.table()
    sums = to_host(all_sum(torch.cat([means, own]), run.world))
    counted = [run.world.size * (state.counts[name] - skipped.get(name.rpartition("/")[0], 0)) for name in names]
    logged = {f"train/{name}": value / count for name, value, count in zip(names, sums, counted) if count}
    logged["train/lr"] = state.schedule.last_lr
    if state.source is None:
        logged["train/epoch"] = state.samples / run.epoch_samples
    if count := sum(skipped.values()):
        logged["train/skipped_steps"] = float(count)
    if compile_s := compile_report(run.logger.say):
        clock.pause_s += compile_s
        logged["perf/compile_s"] = compile_s
    samples = (state.step - state.logged_step) * run.trainer.global_batch_size
    state.totals, state.counts, state.logged_step = {}, {}, state.step
    if run.balance is not None:
        logged |= run.balance.read(sums[len(names) :], state.step)
    run.notify("on_log", state, logged)
    run.logger.log(state.step, logged | clock.read(samples))


def score(state: TrainState, vals: Mapping[str, Loader], run: Run) -> None:
    """Evaluate; save the state if it is among the best. It is still owed if a stop was asked for meanwhile."""
    check_finite(state, run)
    run.replicas.check(on_all_ranks(state), state.step, run.world)
    before = rng_state(run.world.device)
    scores: dict[str, float] = {}
    try:
        for split, val in vals.items():
            scores |= scored(averaged(state), state, split, val, run)
    except Stopped:
        set_rng_state(before, run.world.device)  # as if this evaluation had not begun
        return
    state.scored_step = state.step
    run.logger.log(state.step, scores)
    asked = run.notify("on_eval", state, scores)
    monitor = run.monitor
    sign = 1 if monitor.mode == "min" else -1
    if monitor.key not in scores:
        raise ConfigError(f"monitor.key={monitor.key}: no such score (logged: {', '.join(scores)})")
    value = scores[monitor.key]
    if math.isfinite(value) and (state.best_score is None or sign * value < sign * state.best_score):
        state.best_score, state.stale = value, 0
    else:
        state.stale += 1
    if state.schedule.scored(sign * value):
        best = f"{monitor.key}={value:.4g}, best {state.best_score:.4g}"
        run.logger.say(f"step {state.step}: the learning rate is now {state.schedule.last_lr:g} ({best})")
    if any_rank(asked, run.world):  # a callback may return True on one rank only
        state.ended = state.ended or "callback"
    elif out_of_patience(state, run):
        state.ended = "patience"
    state.owes = ["save"] if state.ended or "save" in state.owes else []
    if math.isfinite(value):
        ranked = sorted([*state.best, [value, state.step]], key=lambda entry: sign * entry[0])
        state.best = ranked[: run.trainer.keep_best]
        if [value, state.step] in state.best:
            save(state, run, best=True)


def scored(model: nn.Module, state: TrainState, split: str, loader: Loader, run: Run) -> dict[str, float]:
    """Returns {<split>/loss, ...} of the unwrapped model, with the task in its present state."""
    batches = run.evaluating(loader, state.step)
    observers = overriding(run.callbacks, "on_eval_batch")
    scores = evaluate(model, state.task, batches, run.world, run.machine, loader.lengths, observers)
    for name, metric in state.task.metrics.items():
        if run.world.is_main and hasattr(metric, "write"):
            metric.write(run.directory / f"{split}_{name}")
    compile_report(run.logger.say)
    return {f"{split}/{name}": value for name, value in scores.items()}


def save(state: TrainState, run: Run, best: bool) -> None:
    """Save a checkpoint; all ranks call this. Rank 0 writes it; of a sharded model each rank writes its own shards.

    With trainer.save_async it is written beside the loop, from a copy of the state in host memory."""
    run.watch.beat("saving", state.step, slow=True)
    check_finite(state, run)
    run.replicas.check(on_all_ranks(state), state.step, run.world)  # before all get rank 0's buffers
    held = Objective(state.model, state.task)
    broadcast_buffers(held, run.world)
    averaged(state)  # copies the model's buffers into the EMA
    state.logged_lines = run.logger.lines
    run.buffers.check_finite(held, state.step)
    if warning := run.buffers.unsaved():
        run.logger.warn(warning)
    payload = state.payload(gather(state.rank_payload(run.world.device), run.world))
    (run.checkpoints.save_best if best else run.checkpoints.save_last)(payload)
    run.watch.beat("training", state.step)
