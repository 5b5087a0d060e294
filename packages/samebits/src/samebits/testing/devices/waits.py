"""Blocks in which the host must not read a value from the device, as on a GPU each read waits for all queued work."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from samebits.profiling import allow_waits, observe_waits
from samebits.testing.processes import module


class Waited(AssertionError):
    """The host waited for the device: operation, file and line."""

    def __init__(self, what: str, file: str, line: int) -> None:
        super().__init__(f"{what} waits for the device, in {file}:{line}: {linecache.getline(file, line).strip()}")


@contextmanager
def refused() -> Iterator[None]:
    """Raise Waited in this block when this thread waits for the device. Other threads, such as loaders, may wait."""

    def refuse(*wait: Any) -> None:
        raise Waited(*wait)

    with observe_waits(refuse):
        yield


@contextmanager
def refused_by_the_gpu() -> Iterator[None]:
    """Make torch raise in this block when the host waits for the GPU."""
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


# code of a GPU test of a method; its first steps may wait, as they allocate memory and choose kernels
ON_A_GPU = """
import sys
import pytest, train
from {package}.program import PROGRAM
from samebits.testing import register
from samebits.testing.devices import refused_by_the_gpu, refused_in_steps
register(PROGRAM)
with pytest.MonkeyPatch.context() as patch:
    refused_in_steps(patch, of_optimizers=False, block=refused_by_the_gpu, after=2)
    sys.exit(train.main())
"""


def refused_in_steps(
    monkeypatch: pytest.MonkeyPatch, of_optimizers: bool = True, block: Callable[[], Any] = refused, after: int = 0
) -> list[int]:
    """Raise Waited when a training step of runs in this process waits for the device. Return the list of steps, which
    is filled while runs train.

    A step may wait while it fetches a batch. of_optimizers: if False, optimizers may wait that are neither fused nor
    have `takes_found_inf`. block: refused, or refused_by_the_gpu. after: number of first steps that may wait."""
    from samebits.steps import takes_found_inf

    loop, optimizer_step = module("loop"), module("optimizer_step")
    original, to_host, lean_step = loop.train_step, optimizer_step.to_host, optimizer_step.lean_step
    steps: list[int] = []
    may_ask: list[bool] = []

    def train_step(loss_modules: Any, state: Any, batches: Any, *rest: Any) -> Any:
        steps.append(state.step)
        may_ask[:] = [not all(map(takes_found_inf, state.optimizer.values()))]
        with block() if len(steps) > after else nullcontext():
            return original(loss_modules, state, _fetched(batches), *rest)

    def asked(*args: Any) -> Any:
        return _freely(to_host, *args) if any(may_ask) else to_host(*args)

    def step(optimizer: Any) -> Any:
        held_to_it = optimizer.defaults.get("fused") or getattr(optimizer, "takes_found_inf", False)
        return lean_step(optimizer) if held_to_it else _freely(lean_step, optimizer)

    monkeypatch.setattr(loop, "train_step", train_step)
    if not of_optimizers:
        closure_step = optimizer_step.closure_step
        monkeypatch.setattr(optimizer_step, "closure_step", lambda *args: _freely(closure_step, *args))
        monkeypatch.setattr(optimizer_step, "to_host", asked)
        monkeypatch.setattr(optimizer_step, "lean_step", step)
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
    with allow_waits(), _sync_debug("default") if torch.cuda.is_initialized() else nullcontext():
        yield
