"""Capture the loop's train_step as one CUDA graph (hardware.cuda_graph)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from lab.state import RunContext, TrainState
from lab.tasks.base import Batch, overrides
from samebits.compiling import Captured, check_optimizer_of_graph
from samebits.errors import ConfigError
from samebits.steps import declares_no_rng

TrainStep = Callable[..., dict[str, Tensor]]  # lab.loop.train_step


def as_graph(train_step: TrainStep, state: TrainState, run: RunContext, draws: bool, has_callbacks: bool) -> TrainStep:
    """Return train_step as one CUDA graph. Raise ConfigError if the task, the optimizer or the schedule needs the host
    in a step. draws: as lab.loop.may_draw_outside_losses returns. has_callbacks: callbacks run between steps."""
    hooks = [name for name in ("train_step", "averaging_factor") if overrides(state.task, name)]
    if draws and not declares_no_rng(state.task):
        why = "whose class lacks `uses_rng = False`,"
        hooks += [f"{name}, {why}" for name in ("on_step_end", "project") if overrides(state.task, name)]
    if hooks or draws:
        what = f"{type(state.task).__name__}.{hooks[0]}" if hooks else "the optimizer, or the schedule,"
        raise ConfigError(
            f"hardware.cuda_graph=true: {what} may draw random numbers or branch on the host - set "
            "hardware.cuda_graph=false"
        )
    check_optimizer_of_graph(state.optimizer.values())
    state.schedule.keep_rates_on(run.world.device)
    modules: dict[str, nn.Module] = {"model": state.model, "task": state.task}
    modules |= {} if state.ema is None else {"ema": state.ema}
    captured = Captured(modules, state.optimizer.values(), run.logger.warn)

    def step(loss_modules: Any, state: TrainState, batches: Iterator[Batch], *more: Any) -> dict[str, Tensor]:
        state.schedule.set_rates(state.step)
        micro_batches = list(islice(batches, len(run.hardware.micro_batch_sizes)))
        since = state.logged_step, state.scored_step, has_callbacks and state.step
        passed = state.passed.get("", 0) + run.trainer.global_batch_size
        values = captured(lambda static: train_step(loss_modules, state, iter(static), *more), micro_batches, since)
        state.passed[""] = passed  # a replay of the graph does not count
        return values

    return step
