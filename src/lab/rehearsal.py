"""Rehearse an evaluation with one batch, before the first step of a new run, without side effects.

A mistake in a metric, in `predict` or in a picture then ends the run at once, and not after hours of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.average import evaluation_mode
from lab.callbacks.base import overridden_methods
from lab.checks import checked_prediction, explained_mistake, key_in_errors, shapes_in_errors
from lab.evaluation import evaluate, monitored
from lab.state import RunContext, TrainState
from lab.tasks.base import Batch, overrides
from samebits.checkpoints import no_new_parameters
from samebits.data import Loader
from samebits.errors import ConfigError, RunFailed, one_line
from samebits.loggers import check_numbers
from samebits.steps import restored_rng
from samebits.world import World


def rehearse(state: TrainState, val_loaders: Mapping[str, Loader], run: RunContext) -> None:
    """Evaluate the first batch of each validation set, and call Task.predict and the callbacks' on_rehearsal.

    All ranks call this. Random numbers, buffers and attributes of modules, metrics and transforms are restored."""
    model, task = state.model if state.ema is None else state.ema, state.task
    observers = [partial(call_hook, hook) for hook in overridden_methods(run.callbacks, "on_rehearsal")]
    warnings: list[str] = []

    def compute(name: str, metric: Any, world: World) -> Any:
        try:
            return metric.compute(world)
        except (ValueError, ArithmeticError) as error:  # may be no mistake: one batch may lack classes
            why = f"which may be too small for it ({one_line(error)})"
            warnings.append(f"task.metrics.{name}: compute raised for one validation batch, {why}")
            return {}

    scores: dict[str, float] = {}
    transforms = [loader.transform for loader in val_loaders.values()]
    parts = [part for transform in transforms for part in getattr(transform, "__dict__", {}).values()]  # of a Chain
    with restored_after(state, run, [*transforms, *parts]), no_new_parameters(model):
        for split, loader in val_loaders.items():
            run.watchdog.beat("trying an evaluation", state.step, slow=True)
            with closing(iter(loader)) as batches:  # type: ignore[type-var] # a generator
                first = [*islice(batches, 1)]  # a rank may have no batch
                values = evaluate(model, task, first, run.world, run.hardware, loader.size_and_real, observers, compute)
            scores |= {f"{split}/{name}": value for name, value in values.items()}
            for batch in first if overrides(task, "predict") else ():
                key = f"task ({type(task).__name__}.predict)"
                with torch.no_grad(), evaluation_mode(model, task), run.hardware.autocast(), key_in_errors(key):
                    try:
                        checked_prediction(task, model, batch)
                    except ConfigError as error:  # e.g. of a model, which `losses` has called without one
                        raise ConfigError(f"{key}: {error}") from error
    check_numbers(scores)
    for line in warnings:
        run.logger.warn(line)
    if scores and not warnings:
        monitored(scores, run)


def call_hook(hook: Callable[..., Any], output: Any, batch: Batch) -> None:
    """Call a callback's on_rehearsal. An error is shown with the callback's name."""
    with shapes_in_errors(f"callback ({type(getattr(hook, '__self__', hook)).__name__})", output, batch):
        hook(output, batch)


@contextmanager
def restored_after(state: TrainState, run: RunContext, others: Iterable[Any] = ()) -> Iterator[None]:
    """Restore RNG states and the attributes of modules, metrics and other objects after this block, including the
    content of tensors (except parameters), lists, dicts, sets and random generators.

    Nothing is compiled in it, because the size of this batch must not determine the compiled code of the training."""
    undo: list[Callable[[], Any]] = []
    seen, holders = set[int](), dict[int, Any]()
    for thing in (state.model, state.ema, state.task, *state.task.metrics.values(), *others):
        holders |= {id(part): part for part in (thing.modules() if isinstance(thing, nn.Module) else [thing])}
    for holder in holders.values():
        append_undo(getattr(holder, "__dict__", None), undo, seen)
    try:
        compiler = torch.compiler.set_stance("force_eager") if run.hardware.compile else nullcontext()
        with restored_rng(run.world.device), compiler:
            yield
    finally:
        with torch.no_grad():
            for restore in undo:
                restore()


def append_undo(value: Any, undo: list[Callable[[], Any]], seen: set[int]) -> None:
    """Append functions to `undo` that restore the present content of `value`. seen: ids of values done."""
    if id(value) in seen or isinstance(value, nn.Parameter):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        copied, version = value.detach().clone(), value._version

        def restore() -> None:
            # writing an equal value would count as a change (BufferChecks)
            if value._version != version or not torch.equal(value, copied):
                value.copy_(copied)

        undo.append(restore)
    elif isinstance(value, torch.Generator):
        state = value.get_state()
        undo.append(lambda: value.set_state(state))
    elif isinstance(value, np.random.Generator):
        numbers = value.bit_generator.state
        undo.append(lambda: setattr(value.bit_generator, "state", numbers))
    elif isinstance(value, (dict, list, set)):
        items = value.copy()
        undo += [value.clear, partial(value.extend if isinstance(value, list) else value.update, items)]
        for name, item in items.items() if isinstance(items, dict) else enumerate(items):
            if name not in ("_parameters", "_modules"):
                append_undo(item, undo, seen)


@contextmanager
def mistakes_before_training(state: TrainState, is_new: bool) -> Iterator[None]:
    """In this block, replace an error of the user's code by a ConfigError in one line, while a new run has taken no
    step. The directory of such a run is removed after a ConfigError."""
    try:
        yield
    except (ConfigError, RunFailed):
        raise
    except Exception as error:
        if is_new and state.step == 0 and (line := explained_mistake(error)):
            raise ConfigError(line) from error
        raise
