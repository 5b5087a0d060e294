"""The training loop. This is the file to edit: most new methods change forward_loss, some train_step.

    while steps are left:
        micro-batches -> forward_loss -> backward (gradients averaged over ranks on the last) -> unscale, clip, update
        at log_every / eval_every / save_every: values cross to the host
        a signal, or the time that is up, on any rank: all stop together, with a checkpoint

Nothing in train_step waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from engine.data.loader import Loader
from engine.errors import RunFailed
from engine.ranks.data_parallel import on_each_device
from engine.ranks.ddp import name_unused
from engine.ranks.distributed import World, all_sum, broadcast_buffers, gather, meet, to_host
from engine.ranks.fsdp import whole
from engine.ranks.seed import rng_state, set_rng_state
from engine.ranks.stop import Stopped
from engine.runs.clock import Clock
from lab.callbacks.base import overriding
from lab.checks import applied, check_losses, check_per_sample, explains_mistakes, first_samples
from lab.state import Batch, Run, StepSettings, Task, TrainState, averaged

SMALLEST_SCALE = 1e-3  # fp16's loss scale begins at 65,536 and is halved by each step that is not finite


def due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@on_each_device  # for trainer=dp
@explains_mistakes
def forward_loss(model: nn.Module, task: Task, batch: Batch) -> tuple[Tensor, Any]:
    """((B,) losses, output). Edit this for a method with another forward pass.

    evaluate calls it too, under no_grad, with batches of other sizes, and not of equal sizes or number on all ranks:
    what talks to other ranks in here (an all_gather) wants trainer.eval_in_step=true.
    """
    output = model(batch["x"])
    return applied(task.criterion, "task.criterion", output, batch), output


def without_sync(net: nn.Module) -> AbstractContextManager[Any]:
    """Gradients stay on their rank: DDP averages them once, with the last micro-batch."""
    no_sync: Any = getattr(net, "no_sync", nullcontext)
    return no_sync()


def train_step(
    net: nn.Module, state: TrainState, task: Task, micro_batches: Iterator[Batch], settings: StepSettings
) -> dict[str, Tensor]:
    """One optimizer step over settings.micro_batch_sizes -> values on the device: loss, grad_norm, non_finite.

    The loss is a sum over samples divided by the samples of the whole share, so uneven micro-batches weigh right, and
    DDP's mean over ranks makes it the mean of the global batch.
    """
    scaler, optimizer = state.scaler, state.optimizer
    total = None
    for i, size in enumerate(settings.micro_batch_sizes):
        batch = next(micro_batches)
        last = i == len(settings.micro_batch_sizes) - 1
        with nullcontext() if last else without_sync(net):
            with settings.autocast():
                losses, _ = forward_loss(net, task, batch)
            check_losses(losses, size)
            loss = losses.sum() / settings.local_batch_size
            (scaler.scale(loss) if scaler else loss).backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    if scaler:
        scaler.unscale_(optimizer)  # first: the limit is on the true gradients
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if len(parameters) < settings.num_parameters:
        name_unused(net, state.model, state.step)
    norm = clip([p.grad for p in parameters], settings.clip_norm)
    # the gradients are the averaged ones, so every rank sees the same norm and takes the same way
    non_finite = norm.mul(0).ne_(0).to(torch.float32)  # 0 times inf or nan is nan: 1 for these, else 0
    if update(state, settings, non_finite):
        state.schedule.step()
    for p in parameters:
        p.grad = None
    if settings.skip_non_finite or scaler:  # a step that is left out adds nothing to the means
        total, norm = (torch.where(non_finite > 0, 0.0, v) for v in (total, norm))
    values = {"loss": total, "grad_norm": norm, "non_finite": non_finite}
    return {name: value.to(total.device) for name, value in values.items()}  # fsdp may keep the gradients on the host


def clip(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Scale the gradients down, in place, to a global norm of `limit` -> their norm before (Pascanu et al. 2013)."""
    norm = whole(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if limit is not None:
        torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


@torch.no_grad()
def update(state: TrainState, settings: StepSettings, non_finite: Tensor) -> bool:
    """Move the weights unless a gradient is not finite -> whether they moved, as far as the host knows.

    The host asks the device only where it must: with fp16, with trainer.non_finite=skip, and for an optimizer without a
    fused kernel. Otherwise the kernel itself leaves the weights alone (found_inf), and the next log stops the run.
    """
    ask = state.scaler is not None or settings.skip_non_finite or not settings.guarded
    moves = not (ask and to_host(non_finite))
    if moves:
        if not ask:
            state.optimizer.found_inf = non_finite  # type: ignore[attr-defined]
        settings.update()  # not scaler.step: the gradients are unscaled already, and the norm has told what it would
        if state.ema is not None:
            assert settings.ema_decay is not None
            torch._foreach_lerp_(list(state.ema.parameters()), list(state.model.parameters()), 1 - settings.ema_decay)
    if state.scaler:
        state.scaler.update()
    return moves


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[Batch],
    world: World,
    autocast: Callable[[], AbstractContextManager[Any]],
    lengths: Callable[[int], tuple[int, int]],
    observers: Iterable[Callable[[Any, Batch], None]] = (),
) -> dict[str, float]:
    """{loss, <metric>, ...}: means over all samples of all ranks, each counted once. `model` is the bare one.

    lengths(k): of the k-th batch, its samples and those of them that count; what comes after these only keeps the
    ranks in step. observers: called with the output and the batch, without what does not count.
    """
    was_training = model.training
    model.eval()
    broadcast_buffers(model, world)
    names = ["loss", *task.metrics]
    precise = torch.float32 if world.device.type == "mps" else torch.float64
    sums = torch.zeros(len(names) + 1, dtype=precise, device=world.device)
    for k, batch in enumerate(batches):
        size, counted = lengths(k)
        with autocast():
            losses, output = forward_loss(model, task, batch)
        check_per_sample(losses, size, "task.criterion")
        values = [losses]
        for name, metric in task.metrics.items():
            values.append(applied(metric, f"task.metrics.{name}", output, batch))
            check_per_sample(values[-1], size, f"task.metrics.{name}")
        sums[:-1] += torch.stack([v[:counted].to(precise).sum() for v in values])
        sums[-1] += counted
        for observe in observers if counted else ():
            observe(first_samples(output, size, counted), first_samples(batch, size, counted))
    all_sum(sums, world)
    model.train(was_training)
    *totals, samples = to_host(sums)
    return {name: total / samples for name, total in zip(names, totals)}


def fit(net: nn.Module, state: TrainState, task: Task, train: Loader, val: Loader | None, run: Run) -> None:
    """Train from state.step to run.total_steps, or until a stop is asked for or the monitored score gets no better."""
    batches = iter(train)
    clock = Clock(train, run.logger)
    stopping = run.patience is not None and state.stale >= run.patience
    if val is not None and to_be_scored(state, run):  # a stop came before this evaluation, or during it
        with clock.paused():
            stopping = score(state, task, val, run)
            save(state, run, best=False)
    on_step = overriding(run.callbacks, "on_step")
    net.train()
    run.watch.beat("training", state.step, slow=True)  # a first step may compile
    while state.step < run.total_steps and not stopping:
        run.balance.begin()
        values = train_step(net, state, task, batches, run.step)
        run.balance.end()
        state.step += 1
        state.samples += run.global_batch_size
        run.watch.beat("training", state.step)
        for name, value in values.items():
            state.totals[name] = state.totals[name] + value if name in state.totals else value
        run.logger.progress(state.step)
        if on_step:
            with run.watch.user_code("a callback's on_step", state.step):
                for call in on_step:
                    call(state)
        at_end = state.step == run.total_steps
        if due(state.step, run.log_every) or at_end:
            log_train(state, run, clock)
        if state.samples // run.epoch_samples > (state.samples - run.global_batch_size) // run.epoch_samples:
            clock.end_epoch(state.step)
        stopping = run.stop.agreed(run.world)
        if val is not None and to_be_scored(state, run) and not stopping:
            with clock.paused():
                stopping = score(state, task, val, run)
        if due(state.step, run.save_every) or at_end or stopping:
            with clock.paused():
                save(state, run, best=False)


def to_be_scored(state: TrainState, run: Run) -> bool:
    at_end = state.step == run.total_steps
    return bool(run.eval_every) and state.scored_step < state.step and (due(state.step, run.eval_every) or at_end)


def check_finite(state: TrainState, run: Run) -> int:
    """Steps since the last log that were not finite; the run stops at them, on all ranks, unless it is to skip them."""
    skipped = int(to_host(state.totals["non_finite"])) if state.totals else 0
    if skipped and not (run.step.skip_non_finite or state.scaler):
        raise RunFailed(
            f"a gradient was not finite in {skipped} of the steps {state.logged_step + 1} to {state.step}; "
            "debug=nan names the module, trainer.non_finite=skip leaves such steps out, "
            "a lower optim.lr or trainer.clip_norm may prevent them"
        )
    if state.scaler and state.scaler.get_scale() < SMALLEST_SCALE:
        raise RunFailed(
            f"fp16: the loss scale has fallen below {SMALLEST_SCALE:g} by step {state.step}, as no step was finite; "
            "hardware.precision=bf16 has the range of fp32, a lower optim.lr may help too"
        )
    return skipped


def log_train(state: TrainState, run: Run, clock: Clock) -> None:
    """The means since the last log, over all ranks, cross to the host together."""
    skipped = check_finite(state, run)
    steps = state.step - state.logged_step
    names = [name for name in state.totals if name != "non_finite"]
    own = torch.tensor(run.balance.row(), device=run.world.device)
    means = torch.stack([state.totals[name].float() for name in names])
    sums = to_host(all_sum(torch.cat([means, own]), run.world))
    counted = run.world.size * (steps - skipped)
    logged = {f"train/{name}": value / counted for name, value in zip(names, sums) if counted}
    logged["train/lr"] = state.schedule.last_lr
    logged["train/epoch"] = state.samples / run.epoch_samples
    if skipped:
        logged["train/skipped_steps"] = float(skipped)
    state.totals, state.logged_step = {}, state.step
    logged |= run.balance.read(state.step, sums[len(names) :])
    run.logger.log(state.step, logged | clock.read(steps * run.global_batch_size))
    run.notify("on_log", state, logged)


def score(state: TrainState, task: Task, val: Loader, run: Run) -> bool:
    """Evaluate; keep the state if it is among the best -> whether to stop: early, pruned, or as it was asked for."""
    before = rng_state(run.world.device)
    try:
        batches = run.evaluating(val, state.step)
        observers = overriding(run.callbacks, "on_eval_batch")
        scores = evaluate(averaged(state), task, batches, run.world, run.step.autocast, val.lengths, observers)
    except Stopped:
        set_rng_state(before, run.world.device)  # as if this evaluation had not begun
        return True
    state.scored_step = state.step
    scores = {f"val/{name}": value for name, value in scores.items()}
    run.logger.log(state.step, scores)
    run.notify("on_eval", state, scores)
    value = scores[run.monitor_key]
    rank = run.monitor_sign * value
    if math.isfinite(value) and (state.best_score is None or rank < run.monitor_sign * state.best_score):
        state.best_score, state.stale = value, 0
    else:
        state.stale += 1
    if math.isfinite(value):
        ranked = sorted([*state.best, [value, state.step]], key=lambda entry: run.monitor_sign * entry[0])
        state.best = ranked[: run.keep_best]
        if [value, state.step] in state.best:
            save(state, run, best=True)
    if run.pruning is not None and state.step < run.total_steps:
        assert run.eval_every is not None
        if run.pruning.stops(run.world, state.step // run.eval_every - 1, scores):
            return True
    return run.patience is not None and state.stale >= run.patience


def save(state: TrainState, run: Run, best: bool) -> None:
    """All ranks call this: each gives what it has of its own; rank 0 writes, or each its part of a sharded model."""
    began = time.monotonic()
    run.watch.beat("saving", state.step, slow=True)
    check_finite(state, run)
    broadcast_buffers(state.model, run.world)
    averaged(state)  # its buffers are the model's
    run.buffers.check_finite(state.model, state.step)
    if warning := run.buffers.unsaved():
        run.logger.warn(warning)
    payload = state.payload(gather(state.rank_payload(run.world.device), run.world))
    (run.checkpoints.save_best if best else run.checkpoints.save_last)(payload)
    meet(run.world)  # the others have as much time for this as rank 0
    run.stop.save_s = max(run.stop.save_s, time.monotonic() - began)
    run.watch.beat("training", state.step)
