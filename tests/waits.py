"""A block in which the host must not ask the device for a value: on a GPU each such question waits for all its work."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from samebits.profiling.waits import allowed, waits_noticed

__all__ = ["ON_A_GPU", "Waited", "allowed", "refused", "refused_in_steps"]


class Waited(AssertionError):
    """what: the operation. The message ends with the line that asked."""

    def __init__(self, what: str, file: str, line: int) -> None:
        super().__init__(f"{what} waits for the device, in {file}:{line}: {linecache.getline(file, line).strip()}")


@contextmanager
def refused() -> Iterator[None]:
    """Of this thread: others, such as a loader's, may ask what they like."""

    def refuse(*wait: Any) -> None:
        raise Waited(*wait)

    with waits_noticed(refuse):
        yield


@contextmanager
def refused_by_the_gpu() -> Iterator[None]:
    """torch raises where the host waits for the GPU."""
    with _sync_debug("error"):
        yield


@contextmanager
def _sync_debug(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# what a test of a method on a GPU runs: the first steps allocate, and choose kernels
ON_A_GPU = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import pytest, train, waits
with pytest.MonkeyPatch.context() as patch:
    waits.refused_in_steps(patch, of_optimizers=False, block=waits.refused_by_the_gpu, after=2)
    sys.exit(train.main())
"""


def refused_in_steps(
    monkeypatch: pytest.MonkeyPatch, of_optimizers: bool = True, block: Callable[[], Any] = refused, after: int = 0
) -> list[int]:
    """Every train_step of this process's runs is such a block, but for the first ones, so many as `after` says. Returns
    the numbers of the steps that were taken.

    The host's part in the data, as a batch is fetched, may ask. of_optimizers: False for a test of something else: an
    optimizer that is neither fused nor says takes_found_inf may ask in its own step, and whether to leave it out."""
    import lab.descend
    import lab.loop
    from samebits.steps import takes_found_inf

    original, to_host, lean_step = lab.loop.train_step, lab.descend.to_host, lab.descend.lean_step
    steps: list[int] = []
    may_ask: list[bool] = []

    def train_step(nets: Any, state: Any, batches: Any, *rest: Any) -> Any:
        steps.append(state.step)
        may_ask[:] = [not all(map(takes_found_inf, state.optimizer.values()))]
        with block() if len(steps) > after else nullcontext():
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
        with _free():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _freely(function: Callable[..., Any], *args: Any) -> Any:
    with _free():
        return function(*args)


@contextmanager
def _free() -> Iterator[None]:
    with allowed(), _sync_debug("default") if torch.cuda.is_initialized() else nullcontext():
        yield
