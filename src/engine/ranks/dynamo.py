"""The compiled model; and starting without torch._dynamo, whose import takes a second in each rank: right only in a
process that compiles nothing.

torch marks some methods as none of dynamo's business, and imports dynamo to do so when they are first called; it looks
up a function's `__dynamo_disable` before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from engine.ranks.options import HardwareConfig

_left_out: list[bool] = []


def skip_dynamo_import() -> None:
    """For the optimizers now, and for DDP when it is made."""
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None:
            _leave_alone(method)
    _left_out.append(True)


@contextmanager
def ddp_without_dynamo() -> Iterator[None]:
    """DistributedDataParallel, made in this block, asks dynamo which kind of reducer to use: the usual one."""
    if not _left_out or "torch._dynamo" in sys.modules:
        yield
        return
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


def compiled(net: nn.Module, hardware: HardwareConfig) -> nn.Module:
    """DDP's buckets cut the compiled graph; releases of torch that cannot cut one with checkpointed modules leave it
    whole, and average the gradients in one call after the backward pass."""
    if isinstance(net, nn.parallel.DistributedDataParallel) and hardware.activation_checkpointing:
        from torch._dynamo import config
        from torch._dynamo.backends.distributed import DDPOptimizer

        functions = [value for value in vars(DDPOptimizer).values() if inspect.isfunction(value)]
        if any("has_higher_order_op" in function.__code__.co_names for function in functions):  # then it raises
            config.optimize_ddp = False
    return torch.compile(net)  # type: ignore[return-value]


def _leave_alone(function: Any) -> None:
    setattr(function, "__dynamo_disable", function)
