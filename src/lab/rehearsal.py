"""Rehearse an evaluation with one batch, before the first step of a new run, without side effects.

A mistake in a metric, in `predict` or in a picture then ends the run at once, and not after hours of training.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.average import evaluation_mode
from lab.callbacks.base import overridden_methods
from lab.checks import explained_mistake, noting, predicted
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
    observers = [partial(called, call) for call in overridden_methods(run.callbacks, "on_rehearsal")]
    raised: list[str] = []

    def compute(name: str, metric: Any, world: World) -> Any:
        try:
            return metric.compute(world)
        except (ValueError, ArithmeticError) as error:  # may be no mistake: one batch may lack classes
            why = f"which may be too small for it ({one_line(error)})"
            raised.append(f"task.metrics.{name}: compute raised for one validation batch, {why}")
            return {}

    scores: dict[str, float] = {}
    transforms = [loader.transform for loader in val_loaders.values()]
    parts = [part for transform in transforms for part in getattr(transform, "__dict__", {}).values()]  # of a Chain
    with as_before(state, run, [*transforms, *parts]), no_new_parameters(model):
        for split, loader in val_loaders.items():
            run.watchdog.beat("trying an evaluation", state.step, slow=True)
            first: list[Batch] = []
            with closing(noted(loader, first)) as batches:
                found = evaluate(
                    model, task, batches, run.world, run.hardware, loader.size_and_real, observers, compute
                )
            scores |= {f"{split}/{name}": value for name, value in found.items()}
            if first and overrides(task, "predict"):
                batch = first[0]
                with (
                    torch.no_grad(),
                    evaluation_mode(model, task),
                    run.hardware.autocast(),
                    noting("task", None, batch),
                ):
                    predicted(task, model, batch)
    check_numbers(scores)
    for line in raised:
        run.logger.warn(line)
    if scores and not raised:
        monitored(scores, run)


def called(call: Callable[..., Any], output: Any, batch: Batch) -> None:
    """Call a callback's on_rehearsal. An error is shown with the callback's name."""
    with noting(f"callback ({type(getattr(call, '__self__', call)).__name__})", output, batch):
        call(output, batch)


def noted(loader: Loader, first: list[Batch]) -> Generator[Batch, None, None]:
    """Yield the loader's first batch and append it to `first`."""
    with closing(iter(loader)) as batches:  # type: ignore[type-var] # a generator
        for batch in islice(batches, 1):
            first.append(batch)
            yield batch


@contextmanager
def as_before(state: TrainState, run: RunContext, others: Iterable[Any] = ()) -> Iterator[None]:
    """Restore RNG states and the attributes of modules, metrics and other objects after this block, including the
    content of tensors (except parameters), lists, dicts, sets and random generators.

    Nothing is compiled in it, because the size of this batch must not determine the compiled code of the training."""
    undo: list[Callable[[], Any]] = []
    seen, holders = set[int](), dict[int, Any]()
    for one in (state.model, state.ema, state.task, *state.task.metrics.values(), *others):
        holders |= {id(part): part for part in (one.modules() if isinstance(one, nn.Module) else [one])}
    for holder in holders.values():
        keep(getattr(holder, "__dict__", None), undo, seen)
    try:
        compiler = torch.compiler.set_stance("force_eager") if run.hardware.compile else nullcontext()
        with restored_rng(run.world.device), compiler:
            yield
    finally:
        with torch.no_grad():
            for restore in undo:
                restore()


def keep(value: Any, undo: list[Callable[[], Any]], seen: set[int]) -> None:
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
                keep(item, undo, seen)


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
