"""Shortcuts through private names of torch. LAB_PLAIN_TORCH=1 turns all of them off; a name that is gone turns its own
off. The first three gain 1.8 s of a command's start (benchmarks/RESULTS.md).

    shortcut                 private name                      gains                     without it
    lean_step                hooks of Optimizer, bare step     torch._dynamo, whose      optimizer.step()
    skip_dynamo_import       __dynamo_disable                    import takes a second,  it is imported
    ddp_without_dynamo       _dynamo.utils, asked by DDP         is not imported         it is imported
    storage_use_count        torch._C._storage_Use_Count       reused batch buffers      fresh memory for each batch
    kernel_skips_non_finite  Optimizer.found_inf               no wait for the device    fp16, skip: a wait at each step
    set_death_signal         multiprocessing._prctl_pr_...     ends with its parent      looks for it each second

Importing this imports no torch.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

_left_out: list[bool] = []


def enabled() -> bool:
    return os.environ.get("LAB_PLAIN_TORCH") != "1"


def lean_step(optimizer: Optimizer) -> None:
    """The optimizer's step without the wrappers that import torch._dynamo and cost at each step.

    optimizer.step itself wherever its wrappers have something to do: hooks of the optimizer or of all optimizers, a
    profiler that is recording, a `step` that was replaced.
    """
    if not steps_bare(optimizer):
        optimizer.step()
        return
    import torch

    with torch.no_grad():
        _bare_step(type(optimizer))(optimizer)  # type: ignore[arg-type]


@functools.cache
def _bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    return inspect.unwrap(kind.step)


@functools.cache
def _watched() -> Callable[[Any], bool] | None:
    """Returns a function: has an optimizer step hooks, or is a profiler on; None if torch lacks the names."""
    import torch.autograd
    import torch.optim.optimizer as module

    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    before, after = (getattr(module, name, None) for name in names)
    recording: Any = getattr(torch.autograd, "_profiler_enabled", None)
    if not enabled() or before is None or after is None or recording is None:
        return None
    own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return lambda one: bool(before or after or recording() or any(getattr(one, name, True) for name in own))


def steps_bare(optimizer: Optimizer) -> bool:
    """Whether a step runs the class's code alone: without hooks or a `step` that was replaced."""
    seen = _watched()
    return not (seen is None or seen(optimizer) or "step" in vars(optimizer))


def is_torchs_own(optimizer: Optimizer) -> bool:
    """Whether a step runs torch's code alone, which draws no random numbers."""
    kind = type(optimizer)
    codes: tuple[Any, ...] = (kind, _bare_step(kind))  # type: ignore[arg-type]
    return steps_bare(optimizer) and all(code.__module__.startswith("torch.optim.") for code in codes)


def skip_dynamo_import() -> None:
    """torch marks some methods as none of dynamo's business, and imports dynamo to do so when they are first called; it
    looks up a function's `__dynamo_disable` before. Right only in a process that compiles nothing."""
    if not enabled():
        return
    from torch.optim import Optimizer

    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None:
            _leave_alone(method)
    _left_out.append(True)


@contextmanager
def ddp_without_dynamo() -> Iterator[None]:
    """In this block DistributedDataParallel's query of dynamo's config is answered without importing dynamo."""
    if not _left_out or "torch._dynamo" in sys.modules:
        yield
        return
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if hasattr(DistributedDataParallel, "_inside_ddp_forward"):
        _leave_alone(inspect.unwrap(DistributedDataParallel._inside_ddp_forward))
    answers = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    vars(torch)["_dynamo"] = answers
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is answers:
            del vars(torch)["_dynamo"]


def _leave_alone(function: Any) -> None:
    setattr(function, "__dynamo_disable", function)


def storage_use_count() -> Callable[[int], int] | None:
    """Returns a function: address of a storage -> number of tensors that hold it; None if torch lacks it."""
    import torch

    return getattr(torch._C, "_storage_Use_Count", None) if enabled() else None


def kernel_skips_non_finite(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel leaves the weights alone where the tensor `found_inf` is 1."""
    return enabled() and bool(optimizer.defaults.get("fused"))


def set_death_signal(number: int) -> bool:
    """Have the kernel send this process a signal when the thread that started it ends. Returns whether it was set."""
    import torch.multiprocessing

    ask = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
    if ask is None or not enabled() or sys.platform != "linux":
        return False
    ask(number)
    return True


def closure_step(optimizer: Any, closure: Any) -> None:
    """The step of an optimizer that waits for what its closure returns."""
    optimizer.step(closure)
