"""torch.compile of the model."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from engine.ranks.options import HardwareConfig


def compiled(net: nn.Module, hardware: HardwareConfig) -> nn.Module:
    """A module may list names of methods that stay eager in an attribute `not_compiled`. torch splits a compiled graph
    at DDP's buckets. Versions that cannot split one with activation checkpointing keep it whole: gradients are then
    averaged after the whole backward pass, without overlap."""
    if isinstance(net, nn.parallel.DistributedDataParallel) and hardware.activation_checkpointing:
        from torch._dynamo import config
        from torch._dynamo.backends.distributed import DDPOptimizer

        functions = [value for value in vars(DDPOptimizer).values() if inspect.isfunction(value)]
        if any("has_higher_order_op" in function.__code__.co_names for function in functions):  # such versions raise
            config.optimize_ddp = False
    for module in net.modules():
        for name in getattr(module, "not_compiled", ()):
            if name not in vars(module):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))
    return torch.compile(net)  # type: ignore[return-value]
