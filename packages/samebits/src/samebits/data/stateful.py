"""Orders with a state: the run changes, saves and loads it; a reorder makes the loader use the changed state.

    order    the order that the run's code changes: weights of rows, a stage, a pool
    in use   a second order, which the loader uses; it has the state that `order` had at the last `take`

A checkpoint contains both states. The order in use gets its state only by load_state_dict, as in a resumed run.
Therefore a value that is missing in the state is noticed at the first reorder, not only after a resume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits.errors import ConfigError, one_line

METHODS = ("state_dict", "load_state_dict")
PLAIN = (bool, int, float, str, type(None))


def has_state(order: Any) -> bool:
    """Return True if an order has a state. Raise ConfigError if it has only one of the two methods."""
    missing = [name for name in METHODS if not callable(getattr(order, name, None))]
    if len(missing) == 1:
        raise ConfigError(f"data.order: {type(order).__name__} has no {missing[0]}; an order with a state needs both")
    return not missing


class StatefulOrder:
    """Hold the two orders. make: returns a new order with state_dict and load_state_dict. saved: the result of
    `state_dict` if a run is resumed, otherwise None. repeated: replaces the order in use (debug=overfit); the state
    still changes."""

    def __init__(
        self,
        make: Callable[[], Any],
        saved: dict[str, Any] | None = None,
        repeated: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.order, self._in_use, self._repeated = make(), make(), repeated
        self.name = type(self.order).__name__
        if saved is not None:
            self._load(self.order, copied(saved["order"], self.name))
        self._state = copied(self.order.state_dict() if saved is None else saved["in_use"], self.name)
        self.use()
        for method in ("window_of", "note") if repeated is None else ():
            if hasattr(self._in_use, method):
                setattr(self, method, getattr(self._in_use, method))

    @classmethod
    def of(cls, loader: Any) -> StatefulOrder:
        """Return the order of a training loader, which run.order and run.reorder change. Raise ConfigError if it has no
        state."""
        order = getattr(loader and loader.plan, "order", None)
        if isinstance(order, cls):
            return order
        if loader is not None and loader.is_stream:
            raise ConfigError("run.order, run.reorder(): the training data are a stream, which has its own order")
        raise ConfigError(
            "run.order, run.reorder(): data.order has no state - choose an order with state_dict and "
            "load_state_dict, as in docs/data_orders.md"
        )

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        rows: np.ndarray = (self._repeated or self._in_use)(sample_ids)
        return rows

    def take(self) -> None:
        """Copy the present state of `order`: `use` puts it in use, and checkpoints save it as the state in use.

        `order` loads a copy as well, because a tensor in its state, such as a buffer of the task, may change at any
        time."""
        self._state = copied(self.order.state_dict(), self.name)
        self._load(self.order, copied(self._state, self.name))

    def use(self) -> None:
        """Load the state of the last `take` into the order in use. Call it while no thread requests rows."""
        self._load(self._in_use, self._state)

    def _load(self, order: Any, state: Any) -> None:
        try:
            order.load_state_dict(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ConfigError(f"data.order: {self.name}.load_state_dict failed: {one_line(error)}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return both states, for a checkpoint."""
        return {"order": copied(self.order.state_dict(), self.name), "in_use": self._state}


def copied(value: Any, name: str, key: str = "state_dict()") -> Any:
    """Return a copy of an order's state on the CPU. Raise ConfigError for values that torch.load(weights_only=True)
    rejects."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(copied(item, name, f"{key}[{i}]") for i, item in enumerate(value))
    if type(value) is dict:
        return {k: copied(item, name, f"{key}[{k!r}]") for k, item in value.items()}
    raise ConfigError(
        f"data.order: {name}.{key} is a {type(value).__name__}, but a checkpoint contains only tensors, numbers, "
        "strings, lists and dicts - use for example torch.from_numpy(array) or float(value)"
    )
