"""Evaluate a model on a split; validate during training; compute the final scores of the best weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lab.average import evaluation_mode, prepare_evaluation_model
from lab.callbacks.base import overridden_methods
from lab.checks import call_with_hints, key_in_errors
from lab.metrics.base import as_metric, same_on_all_ranks, scores_of
from lab.objective import LossModule
from lab.pending import out_of_patience
from lab.state import RunContext, TrainState
from lab.tasks.base import Batch, Task, losses_key
from samebits.checkpoints import eval_state_dict, reshard_like
from samebits.compiling import compile_report, for_evaluation
from samebits.data import Loader
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.host import collect_garbage
from samebits.loggers import grid
from samebits.per_sample import check_per_sample, check_terms, first_samples
from samebits.steps import IN_EVALUATIONS, restored_rng, rng_bytes, seeded, set_rng_bytes
from samebits.world import Stopped, World, to_host


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[Batch],
    world: World,
    hardware: Hardware,
    size_and_real: Callable[[int], tuple[int, int]],
    observers: Sequence[Callable[[Any, Batch], None]] = (),
    compute: Callable[[str, Any, World], Any] = lambda _, metric, world: metric.compute(world),
    own_rng: bool = True,
) -> dict[str, float]:
    """Return {loss, <loss name>, <metric>, ...}: means over the samples of all ranks, each counted once.

    model: without wrappers. size_and_real(k) -> (number of rows of batch k, number of real samples): the others are
    padding (trainer.pad_eval_batches). observers: called with (output, batch), without the padding. compute: called as
    compute(name, metric, world) for the result of a metric with state. own_rng: draw the same random numbers in each
    evaluation, in `compute` the same on all ranks; False: those of the training, as in runs with rules < 4.
    """

    def rng(*stream: int) -> AbstractContextManager[None]:
        return seeded(task.run.seed, *stream, IN_EVALUATIONS, device=world.device) if own_rng else nullcontext()

    net = for_evaluation(LossModule(model, task), hardware)
    world.broadcast_buffers(net)
    autocast, key = hardware.autocast(), losses_key(task)
    metrics = {name: as_metric(metric) for name, metric in task.metrics.items()}
    stateful = {name: metric for name, metric in metrics.items() if hasattr(metric, "compute")}
    per_sample = {name: metric for name, metric in metrics.items() if name not in stateful}
    names = ["loss", *task.loss_names, *per_sample]
    precise = torch.float32 if world.device.type == "mps" else torch.float64
    sums = torch.zeros(len(names) + 1, dtype=precise, device=world.device)
    totals, unweighted = sums.unbind(), 0  # each sum, and the number of samples without a weight
    updates: dict[str, Callable[..., Any]] = {}
    for name, metric in stateful.items():
        with key_in_errors(f"task.metrics.{name}"):
            metric.reset()
            updates[name] = metric.update
    with evaluation_mode(model, task), rng(world.rank, 0):
        for k, batch in enumerate(batches):
            size, real = size_and_real(k)  # the rows after the first `real` are padding
            with autocast:
                losses, output = net(batch)
                weights = task.sample_weights(batch)
            check_terms(key, losses, size, task.loss_names)
            values = [losses[name] for name in ("loss", *task.loss_names)]
            for name, metric in per_sample.items():
                values.append(call_with_hints(metric, f"task.metrics.{name}", output, batch))
                check_per_sample(values[-1], size, f"task.metrics.{name}")
            if real < size:
                values, weights = [value[:real] for value in values], None if weights is None else weights[:real]
            added = _sums(values, weights, precise)
            torch._foreach_add_(totals[: len(added)], added)
            unweighted += real if weights is None else 0
            if real and (updates or observers):
                unpadded = first_samples(output, size, real), first_samples(batch, size, real)
                for name, update in updates.items():
                    call_with_hints(update, f"task.metrics.{name}", *unpadded)
                for observe in observers:
                    observe(*unpadded)
    sums[-1] += unweighted
    world.all_reduce_sum(sums)
    *totals, samples = to_host(sums)
    scores = {name: total / samples if samples else math.nan for name, total in zip(names, totals)}
    computed: dict[str, float] = {}
    for name, metric in stateful.items():
        with key_in_errors(f"task.metrics.{name}"), rng(0, 1):
            computed |= scores_of(compute(name, metric, world), name)
    return scores | (same_on_all_ranks(computed, world, check=own_rng) if stateful else {})


def _sums(values: list[Tensor], weights: Tensor | None, precise: torch.dtype) -> list[Tensor]:
    """Return the weighted sum of each vector (N,), then the sum of the weights. Without weights: the plain sums."""
    if weights is None:
        return [value.sum(dtype=precise) for value in values]
    return [*((value.to(precise) * weights).sum() for value in values), weights.sum().to(precise)]


def validate(state: TrainState, val_loaders: Mapping[str, Loader], run: RunContext) -> bool:
    """Evaluate the validation sets. Return whether the state is among the best by monitor.key.

    The monitored score may also end training (early_stop_patience) or lower the learning rate (Plateau). If a stop is
    requested during the evaluation, nothing changes and the evaluation stays pending."""
    before = rng_bytes(run.world.device)
    scores: dict[str, float] = {}
    try:
        model = prepare_evaluation_model(state, run)
        for split, val in val_loaders.items():
            scores |= score_split(model, state, split, val, run)
    except Stopped:
        set_rng_bytes(before, run.world.device)  # the resumed run repeats this evaluation; needed for rules < 4
        return False
    state.scored_step = state.step
    run.logger.log(state.step, scores)
    callback_stops = run.notify("on_eval", state, scores)
    monitor, value = run.monitor, monitored(scores, run)
    sign = 1 if monitor.mode == "min" else -1
    if math.isfinite(value) and (state.best_score is None or sign * value < sign * state.best_score):
        state.best_score, state.evals_without_improvement = value, 0
    else:
        state.evals_without_improvement += 1
    for objective, lr in state.schedule.on_score(sign * value, state.step).items():
        best, whose = math.nan if state.best_score is None else state.best_score, f" of {objective}" * bool(objective)
        why = f"{monitor.key}={value:.4g}, best {best:.4g}"
        run.logger.say(f"step {state.step}: the learning rate{whose} is now {lr:g} ({why})")
    if run.world.any(callback_stops):  # a callback may return True on one rank only
        state.stop_reason = state.stop_reason or "callback"
    elif out_of_patience(state, run):
        state.stop_reason = "patience"
    state.pending = ["save"] if state.stop_reason or "save" in state.pending else []
    if not math.isfinite(value):
        return False
    ranked = sorted([*state.best, [value, state.step]], key=lambda entry: sign * entry[0])
    state.best = ranked[: run.trainer.keep_best]
    return [value, state.step] in state.best


def monitored(scores: Mapping[str, float], run: RunContext) -> float:
    """Return the score that monitor.key names. Raise ConfigError if there is no such score."""
    key = run.monitor.key
    if key not in scores:
        raise ConfigError(f"monitor.key={key}: no such score (scores: {', '.join(scores)})")
    return scores[key]


def score_split(model: nn.Module, state: TrainState, split: str, loader: Loader, run: RunContext) -> dict[str, float]:
    """Return {<split>/loss, <split>/<metric>, ...} of the model, which is without wrappers."""
    batches = until_stopped(loader, state.step, run)
    observers = overridden_methods(run.callbacks, "on_eval_batch")
    scores = evaluate(
        model, state.task, batches, run.world, run.hardware, loader.size_and_real, observers, own_rng=state.rules >= 4
    )
    for name, metric in state.task.metrics.items():
        if run.world.is_main and hasattr(metric, "write"):
            with key_in_errors(f"task.metrics.{name}"):
                metric.write(run.directory / f"{split}_{name}")
    compile_report(run.logger.say)
    scores = {f"{split}/{name}": value for name, value in scores.items()}
    if nan := _nan_scores(scores):
        before = _nan_scores(run.logger.latest(f"{split}/"))  # so that a score that stays NaN has one line
        if new := [key for key in nan if key not in before]:
            run.logger.warn(f"step {state.step}: these scores are NaN: {', '.join(new)}")
    return scores


def _nan_scores(scores: Mapping[str, Any]) -> list[str]:
    return [key for key, value in scores.items() if isinstance(value, float) and math.isnan(value)]


@torch.no_grad()
def generate_samples(state: TrainState, run: RunContext, count: int) -> Mapping[str, Any]:
    """Return {name: value} from Task.sample with the weight average. All ranks call this. Each call uses the same
    random numbers, and the RNG states of training do not change."""
    model, task, device = prepare_evaluation_model(state, run), state.task, run.world.device
    with restored_rng(device), evaluation_mode(model, task), run.hardware.autocast():
        torch.manual_seed(task.run.seed)
        samples = task.sample(model, count)
    return {"samples": grid(samples.float().clamp(0, 1))} if isinstance(samples, Tensor) else samples


def until_stopped(loader: Loader, step: int, run: RunContext) -> Iterator[Batch]:
    """Yield the batches of an evaluation. Raise Stopped on all ranks, after the same batch, if a stop is requested."""
    run.stop.receive_broadcast()  # of a stop that a training step may have announced
    run.watchdog.beat("evaluating", step)
    run.evaluations_in_progress.append(step)
    try:
        for number, batch in enumerate(loader):
            yield batch
            run.watchdog.beat("evaluating", step)
            collect_garbage(number)
            # plan.common: number of batches that every rank has; some ranks have one more
            if number < loader.plan.common and run.stop.agree(run.world):  # type: ignore[attr-defined]
                raise Stopped
    finally:
        run.evaluations_in_progress.pop()
    run.stop.receive_broadcast()
    if run.stop.cause:
        raise Stopped


def final_scores(state: TrainState, loaders: dict[str, Loader], run: RunContext) -> dict[str, Any]:
    """Return the scores of the best checkpoint's weights (of the last weights if there is none), and the last step with
    its logged training losses."""
    model = prepare_evaluation_model(state, run)
    losses = {key: value for key, value in run.logger.latest("train/").items() if key.endswith("/loss")}
    result: dict[str, Any] = {"step": state.step, **losses}
    run.watchdog.beat("loading the best checkpoint", state.step, slow=True)
    if best := run.checkpoints.load_best(state.best):
        entry, payload = best
        weights = reshard_like(payload, model, entries=("model", "ema"))
        model.load_state_dict(eval_state_dict(weights))
        if state.ema is not None:  # model_or_average copies its buffers into the average
            state.model.load_state_dict(weights["model"])
        if "task" in payload:
            state.task.load_state_dict(payload["task"])
        path = run.checkpoints.best_path(entry)
        # relative to the run directory, which may be moved
        result |= {"best_step": int(entry[1]), "best_checkpoint": f"{path.parent.name}/{path.name}"}
    elif state.evals_without_improvement and state.best_score is None:
        key = run.monitor.key
        run.logger.warn(f"monitor.key={key}: was not finite in any evaluation; scoring the last weights")
    for split, loader in loaders.items():
        result |= score_split(model, state, split, loader, run)
        loader.close()
    return result
