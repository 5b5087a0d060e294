"""A block in which the host must not ask the device for a value: on a GPU each such question waits for all its work."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

ASKS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
# operations whose result's shape, or whose result, the host must know
SIZED = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "repeat_interleave")


ONE_HOT = functional.one_hot


class Waited(AssertionError):
    """what: the operation. The message ends with the line of the project that asked."""

    def __init__(self, what: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/src/lab/" in frame.filename]
        at = f", in {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
        super().__init__(f"{what} waits for the device{at}")


_refusing: list[int] = []  # the threads that may not ask: those that are in such a block


def _may_not_ask() -> bool:
    return threading.get_ident() in _refusing


@contextmanager
def allowed() -> Iterator[None]:
    """In this block of this thread the host may ask again."""
    before, _refusing[:] = [*_refusing], [one for one in _refusing if one != threading.get_ident()]
    try:
        yield
    finally:
        _refusing[:] = before


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _may_not_ask():
            return function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        masks = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
        masked = any(isinstance(m, torch.Tensor) and m.dtype in (torch.bool, torch.uint8) for m in masks)
        if masked or any(name.startswith(one) for one in SIZED):
            raise Waited(str(function))
        return function(*args, **(kwargs or {}))


@contextmanager
def refused() -> Iterator[None]:
    """Of this thread: others, such as a loader's, may ask what they like."""
    with pytest.MonkeyPatch.context() as patch, _Operations():
        for name, answer in [(name, getattr(torch.Tensor, name)) for name in ASKS]:

            def ask(*args: Any, called: str = name, answer: Any = answer) -> Any:
                if _may_not_ask():
                    raise Waited(f"Tensor.{called}")
                return answer(*args)

            patch.setattr(torch.Tensor, name, ask)
        patch.setattr(functional, "one_hot", _one_hot)
        _refusing.append(threading.get_ident())
        try:
            yield
        finally:
            _refusing.remove(threading.get_ident())


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """On a CPU torch looks whether the labels are below num_classes; on a GPU it does not (ATen/native/Onehot.cpp)."""
    with allowed() if num_classes > 0 else nullcontext():
        return ONE_HOT(tensor, num_classes)


def refused_in_steps(monkeypatch: pytest.MonkeyPatch, of_optimizers: bool = True) -> list[int]:
    """Every train_step of this process's runs is such a block. Returns the numbers of the steps that were taken.

    The host's part in the data, as a batch is fetched, may ask. of_optimizers: False for a test of something else: an
    optimizer that is neither fused nor says takes_found_inf may ask in its own step, and whether to leave it out."""
    import lab.descend
    import lab.loop
    from engine.device import takes_found_inf

    original, to_host, lean_step = lab.loop.train_step, lab.descend.to_host, lab.descend.lean_step
    steps: list[int] = []
    may_ask: list[bool] = []

    def train_step(nets: Any, state: Any, batches: Any, *rest: Any) -> Any:
        steps.append(state.step)
        may_ask[:] = [not all(map(takes_found_inf, state.optimizer.values()))]
        with refused():
            return original(nets, state, _fetched(batches), *rest)

    def asked(*args: Any) -> Any:
        return _freely(to_host, *args) if any(may_ask) else to_host(*args)

    def step(optimizer: Any) -> Any:
        held_to_it = optimizer.defaults.get("fused") or getattr(optimizer, "takes_found_inf", False)
        return lean_step(optimizer) if held_to_it else _freely(lean_step, optimizer)

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    if not of_optimizers:
        closure_step = lab.descend.closure_step
        monkeypatch.setattr(lab.descend, "closure_step", lambda *args: _freely(closure_step, *args))
        monkeypatch.setattr(lab.descend, "to_host", asked)
        monkeypatch.setattr(lab.descend, "lean_step", step)
    return steps


def _fetched(batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        with allowed():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _freely(function: Callable[..., Any], *args: Any) -> Any:
    with allowed():
        return function(*args)
