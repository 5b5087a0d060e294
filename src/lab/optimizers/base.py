"""The base class of optimizers around others. Any other optimizer is a torch.optim.Optimizer, whose class may say:

uses_rng = False           a step draws no random numbers. Not inherited: a subclass may draw again
takes_found_inf = True  a step changes nothing where `self.found_inf`, a 0-d tensor, is 1 (None: it moves). Then
                        hardware.precision=fp16 and trainer.non_finite=skip wait for the device in no step.
                        samebits.steps.unless puts back what a step has changed
takes_rate_tensor = True  its groups' lr may be 0-d tensors of the device: what hardware.cuda_graph has
takes_names = True      its groups have "param_names" beside "params"
eval_weight(p) -> Tensor     what is scored, saved as the average, exported and given by load_run in the place of the weight
                        p (the mean of Schedule-free): called after each step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lab.optim import build_optimizer
from samebits.torch_private import lean_step

Groups = list[dict[str, Any]]


class Wrapper(Optimizer):
    """Optimizers as one: the schedule, clipping, checkpoints and resumes see a single one, with the parts' groups and
    state as its own. A subclass makes its parts (`build`), gives them to super().__init__ and writes `step`.

    What it holds for a parameter beside the parts' is in self.state[p], under a name of its own and put there after
    `move`: many optimizers take an empty state for a first step. A number that counts is in the groups."""

    takes_names = True

    def __init__(self, parts: Iterable[Optimizer]) -> None:
        self.parts = list(parts)
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
        """The parts' steps. Returns what the last one's returns: the closure's loss."""
        said = None
        for part in self.parts:
            said = lean_step(part) if closure is None else part.step(closure)  # type: ignore[func-returns-value]
        return said


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What a step returns: the closure's loss, computed with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def moved_by(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """(group, its parameters that have a gradient), of groups that have some."""
    for group in optimizer.param_groups:
        if moved := [p for p in group["params"] if p.grad is not None]:
            yield group, moved


def state_of(optimizer: Optimizer, moved: Sequence[Any], name: str) -> list[Tensor]:
    """What the optimizer holds under this name for each; zeros where it holds nothing yet."""
    for p in moved:
        if not optimizer.state[p]:
            optimizer.state[p][name] = torch.zeros_like(p)
    return [optimizer.state[p][name] for p in moved]


def groups_of(params: Iterable[Any]) -> Groups:
    """params: parameters or groups of them, as any optimizer takes them -> groups, new dicts."""
    params = list(params)
    return [dict(group) for group in (params if isinstance(params[0], Mapping) else [{"params": params}])]


def build(make: Callable[..., Optimizer], groups: Sequence[dict[str, Any]], **values: Any) -> Optimizer:
    """Returns make(groups), fused where it can be. make: a class with its arguments (a partial), which go before
    `values`."""
    given = values | getattr(make, "keywords", {})
    return build_optimizer(partial(getattr(make, "func", make), **given), lambda: [dict(group) for group in groups])
