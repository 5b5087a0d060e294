"""What a callback may override. A callback observes; what changes the algorithm belongs into a task or loop.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


class Callback:
    """Called on every rank, with the loop's TrainState as `state`; what is not overridden costs nothing.

    run: the run's surroundings, there from on_start on: run.directory (write files where run.world.is_main),
    run.world (rank, size, device), run.logger (log(step, values), say(text), warn(text)).
    """

    run: Any  # lab.state.Run

    def on_start(self, state: Any) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def before_step(self, state: Any) -> None:
        """Before each optimizer step, its batch too."""

    def on_step(self, state: Any) -> None:
        """After each optimizer step. state.totals holds sums since the last log, on the device: reading them waits."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Before the training values of a log are written, on all ranks; what is added to `values` is written too."""

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        """In an evaluation, and in the final scores of val and test: each batch of this rank's own samples, after the
        model, on the device and without gradients. Each sample comes once, on one rank."""

    def on_eval(self, state: Any, scores: dict[str, float]) -> bool | None:
        """After an evaluation during training, with its scores over all ranks (val/...). True, on any rank, ends the
        training on all: the best weights are scored, and the run has finished."""

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """After the final scores (val/... and test/... of the best weights); not where the run failed or was stopped.
        The model that was scored, lab.state.averaged(state), has the best weights. `scores` may be left out."""


def overriding(callbacks: Iterable[Any], name: str) -> list[Callable[..., None]]:
    """The methods `name` of the callbacks that have one of their own."""
    methods = [getattr(callback, name, None) for callback in callbacks]
    return [m for m in methods if m is not None and getattr(m, "__func__", m) is not getattr(Callback, name)]


def end(callbacks: Iterable[Any], state: Any, scores: dict[str, float]) -> None:
    for on_end in overriding(callbacks, "on_end"):
        takes_scores = len(inspect.signature(on_end).parameters) > 1
        on_end(*((state, scores) if takes_scores else (state,)))
