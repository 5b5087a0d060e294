"""The compiled model."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from engine.ranks.options import HardwareConfig


def compiled(net: nn.Module, hardware: HardwareConfig) -> nn.Module:
    """Modules may name methods that stay as they are: `not_compiled`. DDP's buckets cut the compiled graph; releases of
    torch that cannot cut one with checkpointed modules leave it whole, and average the gradients in one call after the
    backward pass."""
    if isinstance(net, nn.parallel.DistributedDataParallel) and hardware.activation_checkpointing:
        from torch._dynamo import config
        from torch._dynamo.backends.distributed import DDPOptimizer

        functions = [value for value in vars(DDPOptimizer).values() if inspect.isfunction(value)]
        if any("has_higher_order_op" in function.__code__.co_names for function in functions):  # then it raises
            config.optimize_ddp = False
    for module in net.modules():
        for name in getattr(module, "not_compiled", ()):
            if name not in vars(module):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))
    return torch.compile(net)  # type: ignore[return-value]
