"""The base class of optimizers that wrap other optimizers.

An optimizer is any torch.optim.Optimizer. Its class may declare:

    uses_rng = False          step() uses no random numbers. Not inherited, because a subclass may use some
    takes_found_inf = True    step() changes nothing if `self.found_inf`, a 0-d tensor, is 1 (None: always update). Then
                              hardware.precision=fp16 and trainer.non_finite=skip never wait for the device.
                              samebits.steps.restore_if undoes the changes of a step
    takes_rate_tensor = True  the lr of its groups may be a 0-d tensor on the device; hardware.cuda_graph requires it
    takes_names = True        its groups may have "param_names" in addition to "params"
    eval_weight(p) -> Tensor  replaces the weight p in evaluations, the saved average, export and load_run (the mean of
                              ScheduleFree); called after each step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lab.optim import build_optimizer
from samebits.errors import ConfigError
from samebits.torch_private import lean_step

Groups = list[dict[str, Any]]


class Wrapper(Optimizer):
    """Combine several optimizers (parts) into one that has the param_groups and the state of all parts.

    A subclass builds its parts (see `build`), passes them to super().__init__ and implements `step`. It may store
    values for a parameter in self.state[p], under its own names and after `move`, because many optimizers treat an
    empty state as the first step. Store counters in the groups.
    """

    takes_names = True

    def __init__(self, parts: Iterable[Optimizer]) -> None:
        self.parts = list(parts)
        inner = next((part for part in self.parts if hasattr(part, "eval_weight")), None)
        if inner is not None and not hasattr(self, "eval_weight"):
            raise ConfigError(
                f"optim: {type(self).__name__} contains {type(inner).__name__}, whose average would not be evaluated - "
                f"use {type(inner).__name__} as the outer optimizer"
            )
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make the parts use this optimizer's param_groups and state instead of their own."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.__setstate__({"state": self.state, "param_groups": [next(groups) for _ in part.param_groups]})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def move(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call step() of all parts. Return the result of the last one, the loss of the closure."""
        said = None
        for part in self.parts:
            said = lean_step(part) if closure is None else part.step(closure)  # type: ignore[func-returns-value]
        return said


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return the loss of the closure, computed with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def moved_by(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield (group, its parameters with a gradient) of all groups that have such parameters."""
    for group in optimizer.param_groups:
        if moved := [p for p in group["params"] if p.grad is not None]:
            yield group, moved


def state_of(optimizer: Optimizer, moved: Sequence[Any], name: str) -> list[Tensor]:
    """Return the optimizer's state `name` of each parameter; if a state is empty, create zeros."""
    for p in moved:
        if not optimizer.state[p]:
            optimizer.state[p][name] = torch.zeros_like(p)
    return [optimizer.state[p][name] for p in moved]


def groups_of(params: Iterable[Any]) -> Groups:
    """Return the groups of an optimizer's argument `params` (parameters or groups) as new dicts."""
    params = list(params)
    return [dict(group) for group in (params if isinstance(params[0], Mapping) else [{"params": params}])]


def build(make: Callable[..., Optimizer], groups: Sequence[dict[str, Any]], **values: Any) -> Optimizer:
    """Return make(groups, **values), fused if possible. make: a class or a partial, whose arguments replace
    `values`."""
    given = values | getattr(make, "keywords", {})
    return build_optimizer(partial(getattr(make, "func", make), **given), lambda: [dict(group) for group in groups])
