"""The base class of callbacks. A callback observes; changes to the algorithm belong in a task or loop.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from engine.errors import ConfigError
from engine.schema import did_you_mean

HOOKS = ("on_", "before_")  # how the names of the methods below begin


class Callback:
    """Methods are called on every rank, with the loop's TrainState as `state`; those not overridden cost nothing.

    run: lab.state.Run, set before on_start: run.directory (write files if run.world.is_main), run.world (rank, size,
    device), run.logger (log(step, values), say(text), warn(text)).
    """

    run: Any  # lab.state.Run

    def on_start(self, state: Any) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def before_step(self, state: Any) -> None:
        """Before each optimizer step, and before its batch is taken from the loader."""

    def on_step(self, state: Any) -> None:
        """After each optimizer step. state.totals: sums since the last log, on the device; reading one waits for it."""

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
        lab.state.averaged(state) is the scored model, with the best weights. An override may omit `scores`."""


def check_hooks(key: str, kind: type[Callback]) -> None:
    """ConfigError if the class has a method of a hook's kind that is none, such as on_stepp or Lightning's
    on_train_epoch_end, which would never be called, or one that does not take what it is called with."""
    hooks = [name for name in dir(Callback) if name.startswith(HOOKS)]
    for name in dir(kind):
        if name.startswith(HOOKS) and name not in hooks:
            raise ConfigError(
                f"{key}: {kind.__name__}.{name} would never be called{did_you_mean(name, hooks)} (called are: "
                f"{', '.join(hooks)}; a method of another use has another name)"
            )
    for name in hooks:
        asked, *given = inspect.signature(getattr(Callback, name)).parameters
        found = inspect.signature(getattr(kind, name))
        shorter = [given[:1]] if name == "on_end" else []  # its scores may be left out
        if not any(takes(found, [asked, *names]) for names in [given, *shorter]):
            raise ConfigError(f"{key}: {kind.__name__}.{name} must take ({', '.join(given)}), got {found}")


def takes(signature: inspect.Signature, arguments: Iterable[Any]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def overriding(callbacks: Iterable[Any], name: str) -> list[Callable[..., None]]:
    """Returns the bound methods `name` of the callbacks that override it."""
    methods = [getattr(callback, name, None) for callback in callbacks]
    return [m for m in methods if m is not None and getattr(m, "__func__", m) is not getattr(Callback, name)]
