"""Orders that follow the model: their state is changed by the run, saved, and put in use at a reorder.

    order    what the run's code changes: weights of rows, a stage, a pool
    in use   what the loader goes by: an order of its own, with the state that `order` had at the last `take`

A checkpoint holds both states. The order in use is only ever given a state_dict, as that of a resumed run is: a value
that the state leaves out is missed at the first reorder, not at a resume.
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
    """Whether an order has a state; half of the two methods is refused."""
    missing = [name for name in METHODS if not callable(getattr(order, name, None))]
    if len(missing) == 1:
        raise ConfigError(f"data.order: {type(order).__name__} has no {missing[0]}, and an order with a state has both")
    return not missing


class StatefulOrder:
    """make() -> a new order with state_dict and load_state_dict. saved: what `state_dict` gave, at a resume. repeated:
    goes in place of the order in use (debug=overfit), whose state changes all the same."""

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
        """Return the order of a training loader, which run.order and run.reorder change; ConfigError if it has no
        state."""
        order = getattr(loader and loader.plan, "order", None)
        if isinstance(order, cls):
            return order
        if loader is not None and loader.is_stream:
            raise ConfigError("run.order, run.reorder(): the training data are a stream, which comes in its own order")
        raise ConfigError(
            "run.order, run.reorder(): data.order has no state that could change - choose one with state_dict and "
            "load_state_dict, as in docs/data_orders.md"
        )

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        rows: np.ndarray = (self._repeated or self._in_use)(numbers)
        return rows

    def take(self) -> None:
        """The present state of `order` is what `use` puts in use; checkpoints hold it as such from now on. `order` gets
        a copy: a tensor that was given to it, such as a buffer of the task, may change in its own time."""
        self._state = copied(self.order.state_dict(), self.name)
        self._load(self.order, copied(self._state, self.name))

    def use(self) -> None:
        """To be called while nobody asks for rows."""
        self._load(self._in_use, self._state)

    def _load(self, order: Any, state: Any) -> None:
        try:
            order.load_state_dict(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ConfigError(f"data.order: {self.name}.load_state_dict refuses a state: {one_line(error)}") from error

    def state_dict(self) -> dict[str, Any]:
        return {"order": copied(self.order.state_dict(), self.name), "in_use": self._state}


def copied(value: Any, name: str, key: str = "state_dict()") -> Any:
    """A copy of an order's state, of what a checkpoint can give back (weights_only=True), on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(copied(item, name, f"{key}[{i}]") for i, item in enumerate(value))
    if type(value) is dict:
        return {k: copied(item, name, f"{key}[{k!r}]") for k, item in value.items()}
    raise ConfigError(
        f"data.order: {name}.{key} is a {type(value).__name__}, and a checkpoint holds tensors, numbers, texts, lists "
        "and dicts: give torch.from_numpy(array), float(value) or the like"
    )
