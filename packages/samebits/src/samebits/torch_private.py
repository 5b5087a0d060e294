"""Use private names of torch to save time. LAB_PLAIN_TORCH=1 disables all of these shortcuts; a name that no longer
exists disables its own. The first three save 1.8 s when a command starts (benchmarks/RESULTS.md).

    shortcut                 private name                      saves                     without it
    lean_step                hooks of Optimizer, bare step     torch._dynamo, whose      optimizer.step()
    skip_dynamo_import       __dynamo_disable                    import takes a second,  it is imported
    ddp_without_dynamo       _dynamo.utils, read by DDP        is not imported           it is imported
    backward                 _engine_run_backward              sympy is not imported     Tensor.backward(gradient)
    storage_use_count        torch._C._storage_Use_Count       reuses batch buffers      new memory for each batch
    kernel_skips_non_finite  Optimizer.found_inf               no synchronization        fp16, skip: one per step
    set_death_signal         multiprocessing._prctl_pr_...     ends with its parent      checks for it each second

Importing this module does not import torch.
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

from samebits.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_left_out: list[bool] = []


def enabled() -> bool:
    """Return True unless LAB_PLAIN_TORCH=1."""
    return os.environ.get("LAB_PLAIN_TORCH") != "1"


def lean_step(optimizer: Optimizer) -> None:
    """Run the optimizer's step without the wrappers that import torch._dynamo and cost time in each step.

    optimizer.step itself is called if its wrappers have an effect: hooks of the optimizer or of all optimizers, a
    profiler that is recording, a `step` that was replaced.
    """
    if not steps_bare(optimizer):
        optimizer.step()
        return
    import torch

    with torch.set_grad_enabled(False):  # no_grad is 7 Python calls, this is 3
        _bare_step(type(optimizer))(optimizer)  # type: ignore[arg-type]


def backward(losses: Tensor, gradient: Tensor) -> None:
    """Compute gradients as `losses.sum().backward(gradient)` does, without a sum in the graph. losses: (B,). gradient:
    0-d, the same for each loss.

    `Tensor.backward` itself is called if it may do more: if it was replaced, as by a profiler, for a subclass of
    Tensor, under a mode that replaces functions of torch (torch.set_default_device), and in a transform of torch.func,
    where it raises an error."""
    gradients = gradient.expand_as(losses)  # as a sum does: with other strides, later sums might round differently
    engine = _engine()
    if engine is None or engine.must_not_run(losses):
        losses.backward(gradients)
    else:
        engine.run((losses,), (gradients,))


@functools.cache
def _engine() -> SimpleNamespace | None:
    """Return torch's function run(losses, gradients) and a function must_not_run(losses); None if torch lacks the
    names, or if a trial shows that `run` has changed."""
    import torch.autograd.graph
    from torch.overrides import has_torch_function

    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    in_transform = getattr(torch._C, "_are_functorch_transforms_active", None)
    if not enabled() or run is None or in_transform is None:
        return None
    run = functools.partial(run, keep_graph=False, create_graph=False, allow_unreachable=True, accumulate_grad=True)
    weights = torch.ones(2, device="cpu", requires_grad=True)
    try:
        with torch.enable_grad():
            run((3 * weights,), (torch.tensor([1.0, 2.0], device="cpu"),))
    except TypeError:  # other arguments
        return None
    if weights.grad is None or weights.grad.tolist() != [3.0, 6.0]:
        return None

    def must_not_run(losses: Tensor) -> bool:
        return (
            getattr(torch.Tensor.backward, "__globals__", None) is not vars(torch._tensor)
            or getattr(torch.autograd.backward, "__globals__", None) is not vars(torch.autograd)
            or has_torch_function((losses,))
            or in_transform()
        )

    return SimpleNamespace(run=run, must_not_run=must_not_run)


@functools.cache
def needs_no_closure(kind: type[Optimizer], key: str = "optim") -> None:
    """Raise ConfigError if optimizers of this class need a closure. key: the config key of the optimizer."""
    try:
        closure = inspect.signature(kind.step).parameters.get("closure")
    except ValueError:  # a step that is written in C
        return
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{key}: {kind.__name__} needs a task whose train_step passes a closure: "
            "optimizer_step.update(objective, closure) - use such a task, or another optimizer (optim=adamw)"
        )


@functools.cache
def _bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    needs_no_closure(kind)  # type: ignore[arg-type]
    return inspect.unwrap(kind.step)


@functools.cache
def _watched() -> Callable[[Any], bool] | None:
    """Return a function that returns True if an optimizer has step hooks or a profiler is recording; None if torch
    lacks the names."""
    import torch.autograd
    import torch.optim.optimizer as module

    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    before, after = (getattr(module, name, None) for name in names)
    recording: Any = getattr(torch.autograd, "_profiler_enabled", None)
    if not enabled() or before is None or after is None or recording is None:
        return None
    return lambda one: bool(
        before
        or after
        or getattr(one, "_optimizer_step_pre_hooks", True)
        or getattr(one, "_optimizer_step_post_hooks", True)
        or recording()
    )


def steps_bare(optimizer: Optimizer) -> bool:
    """Return True if a step runs only the code of the class: no hooks, and `step` was not replaced."""
    seen = _watched()
    return not (seen is None or seen(optimizer) or "step" in vars(optimizer))


def is_torchs_own(optimizer: Optimizer) -> bool:
    """Return True if a step runs only torch's code, which draws no random numbers."""
    return _is_torchs_class(type(optimizer)) and steps_bare(optimizer)  # type: ignore[arg-type]


@functools.cache
def _is_torchs_class(kind: type[Optimizer]) -> bool:
    codes: tuple[Any, ...] = (kind, inspect.unwrap(kind.step))
    return all(code.__module__.startswith("torch.optim.") for code in codes)


def skip_dynamo_import() -> None:
    """Prevent the import of dynamo when some methods of Optimizer are first called. torch imports it to disable dynamo
    for them, unless they have an attribute `__dynamo_disable`. Use it only in a process that compiles nothing."""
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
    """Answer DistributedDataParallel's query of dynamo's config within this block without importing dynamo."""
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
    """Return a function: address of a storage -> number of tensors that use it; None if torch lacks it."""
    import torch

    return getattr(torch._C, "_storage_Use_Count", None) if enabled() else None


def kernel_skips_non_finite(optimizer: Optimizer) -> bool:
    """Return True if the optimizer's kernel does not change the weights when the tensor `found_inf` is 1."""
    return enabled() and bool(optimizer.defaults.get("fused"))


def set_death_signal(number: int) -> bool:
    """Make the kernel send this process a signal when the thread that started it ends. Return True if it was set."""
    import torch.multiprocessing

    ask = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
    if ask is None or not enabled() or sys.platform != "linux":
        return False
    ask(number)
    return True


def closure_step(optimizer: Any, closure: Any) -> None:
    """Call the step of an optimizer that requires a closure."""
    optimizer.step(closure)
