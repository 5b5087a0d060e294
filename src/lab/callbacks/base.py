"""The base class of callbacks. Callbacks observe training; changes to the algorithm belong in a task or in loop.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Callback:
    """Override the methods you need. They are called on every rank; methods that are not overridden cost nothing.

    state: the lab.state.TrainState of the run, e.g. state.step, state.model, state.task. self.run: the
    lab.state.RunContext, set before on_start: run.directory (write files only if run.world.is_main), run.world (rank,
    size, device), run.logger (log(step, values), say(text), warn(text))."""

    run: Any  # lab.state.RunContext

    def on_start(self, state: Any) -> None:
        """Run before the first step, after a checkpoint was loaded."""

    def before_step(self, state: Any) -> None:
        """Run before each optimizer step, before its batch is read from the loader."""

    def on_step(self, state: Any) -> None:
        """Run after each optimizer step. state.running_sums: sums of the losses since the last log, on the device.
        Reading one of them waits for the device."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Run before training values are logged. Entries that you add to `values` are logged too."""

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        """Run for each evaluation batch, also for the final scores, with the task's output and the batch of this
        rank, on the device, without gradients. Each sample is passed once, on one rank."""

    def on_rehearsal(self, output: Any, batch: Any) -> None:
        """Run before the first step of a new run, with the first batch of a validation set, as on_eval_batch. Raise
        the errors that an evaluation would raise, so that a run fails early. Do not keep any results."""

    def on_eval(self, state: Any, scores: dict[str, float]) -> bool | None:
        """Run after each evaluation during training. scores: {"val/...": value over all ranks}.

        If it returns True on any rank, training ends on all ranks, the best weights are scored, and the run is
        finished. A resume of this run does not train further unless it increases the number of steps."""

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """Run after the final scores, but not if the run failed or was stopped. An override may omit `scores`.

        scores: {"val/...", "test/...": value} of the best weights. lab.state.model_or_average(state) is the evaluated
        model.
        """


def overridden_methods(callbacks: Iterable[Any], name: str) -> list[Callable[..., None]]:
    """Return the bound methods `name` of the callbacks that override it."""
    methods = [getattr(callback, name, None) for callback in callbacks]
    return [m for m in methods if m is not None and getattr(m, "__func__", m) is not getattr(Callback, name)]
