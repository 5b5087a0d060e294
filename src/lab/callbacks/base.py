"""The base class of callbacks. A callback observes; changes to the algorithm belong in a task or loop.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Callback:
    """Methods are called on every rank, with the loop's TrainState as `state`; those not overridden cost nothing.

    run: lab.state.RunContext, set before on_start: run.directory (write files if run.world.is_main), run.world (rank, size,
    device), run.logger (log(step, values), say(text), warn(text)).
    """

    run: Any  # lab.state.RunContext

    def on_start(self, state: Any) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def before_step(self, state: Any) -> None:
        """Before each optimizer step, and before its batch is taken from the loader."""

    def on_step(self, state: Any) -> None:
        """After each optimizer step. state.running_sums: sums since the last log, on the device; reading one waits for it."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Before training values are logged, on all ranks; entries added to `values` are logged too."""

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        """After the model in each evaluation batch, those of the final scores too: this rank's samples, on the device,
        without gradients. Each sample is passed once, on one rank."""

    def on_rehearsal(self, output: Any, batch: Any) -> None:
        """Before the first step of a new run, with the first batch of a validation set, as on_eval_batch: raise what
        would be raised in an evaluation, and keep nothing."""

    def on_eval(self, state: Any, scores: dict[str, float]) -> bool | None:
        """After an evaluation during training, with its scores over all ranks (val/...). If any rank returns True,
        training ends on all ranks, the best weights are scored, and the run is finished: also if it is resumed, unless
        with more steps than it had."""

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """After the final scores (val/... and test/... of the best weights); not if the run failed or was stopped.
        lab.state.averaged_model(state) is the scored model, with the best weights. An override may omit `scores`."""


def overriding(callbacks: Iterable[Any], name: str) -> list[Callable[..., None]]:
    """Returns the bound methods `name` of the callbacks that override it."""
    methods = [getattr(callback, name, None) for callback in callbacks]
    return [m for m in methods if m is not None and getattr(m, "__func__", m) is not getattr(Callback, name)]
