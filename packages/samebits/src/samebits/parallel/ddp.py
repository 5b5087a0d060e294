"""The model wrapped as trainer.strategy says; DDP as trainer.ddp sets it, unused parameters named in one line."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samebits.errors import ConfigError
from samebits.parallel.data_parallel import Replicas, gpus
from samebits.parallel.options import DDPConfig, Strategy
from samebits.torch_private import ddp_without_dynamo
from samebits.world import World, dist_env

log = logging.getLogger("samebits")


def wrap_net(model: nn.Module, world: World, trainer: Strategy) -> nn.Module:
    """The model wrapped so that its backward averages gradients over the ranks; with one rank the model itself."""
    if trainer.strategy == "dp":
        return Replicas(model, gpus())
    return model if world.size == 1 else wrap_ddp(model, world.device, trainer.ddp)


def wrap_ddp(model: nn.Module, device: torch.device, options: DDPConfig) -> DistributedDataParallel:
    if options.comm_hook == "bf16" and device.type != "cuda":
        raise ConfigError(f"trainer.ddp.comm_hook=bf16: torch has it for CUDA only, not for {device.type}; fp16 works")
    # buffers are broadcast before an evaluation or a checkpoint, not at each step; torch 2.13 renamed the argument
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    arguments: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    for name in ("find_unused_parameters", "static_graph", "bucket_cap_mb"):
        arguments[name] = getattr(options, name)
    devices = [device] if device.type == "cuda" else None
    with ddp_without_dynamo():
        net = DistributedDataParallel(model, devices, gradient_as_bucket_view=True, **arguments)
    if options.comm_hook is not None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        # not PowerSGD's: its error feedback is carried from step to step, and no checkpoint holds it
        net.register_comm_hook(None, getattr(default_hooks, f"{options.comm_hook}_compress_hook"))
    if not (options.find_unused_parameters or options.static_graph):
        build_final_buckets(net)
    return net


def build_final_buckets(net: DistributedDataParallel) -> None:
    """Let DDP form its final buckets now, not after the first step.

    Bucket layout fixes the order in which three or more ranks' gradients are summed, so a resumed run needs the layout
    of the uninterrupted one. But DDP rebuilds buckets after a process's first backward, in the order in which gradients
    came. This first backward gives them from the last parameter to the first. (With find_unused_parameters DDP does
    not rebuild; with static_graph it would record this backward as the model's graph.)
    """
    model, trained = net.module, [p for p in net.parameters() if p.requires_grad]
    # the term added last comes first in the backward; `unused`: DDP fails on CUDA without an input
    own = vars(model).get("forward")  # a model may choose its forward in __init__
    model.forward = lambda unused: sum(p.real.sum() for p in trained)
    net(trained[0].detach()).backward()
    del model.forward
    if own is not None:
        model.forward = own
    for p in trained:
        p.grad = None


def with_sync_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """BatchNorm with statistics over the samples of all ranks; state_dict names stay the same."""
    if device.type == "cpu":
        raise ConfigError("trainer.sync_batchnorm=true: torch's SyncBatchNorm runs on a GPU only")
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError(f"trainer.sync_batchnorm=true: {type(model).__name__} has no BatchNorm; leave it false")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def unwrapped(net: nn.Module) -> DistributedDataParallel | None:
    """The DDP module of `net`, which may be compiled; None: `net` is not DDP."""
    net = getattr(net, "_orig_mod", net)
    return net if isinstance(net, DistributedDataParallel) else None


def name_unused(net: nn.Module, unused: Sequence[torch.Tensor], step: int) -> None:
    """Name the parameters that the backward of `net` left without a gradient.

    Plain DDP needs a gradient for each parameter: it has not finished its all-reduce, and ranks would diverge, so this
    raises ConfigError. Elsewhere a warning at the first step.
    """
    ddp = unwrapped(net)
    fatal = ddp is not None and not (ddp.find_unused_parameters or ddp.static_graph)
    if not fatal and step > 0:
        return
    ids = {id(p) for p in unused}
    module = ddp.module if ddp is not None else getattr(net, "_orig_mod", net)
    names = [name.removeprefix("model.") for name, p in module.named_parameters() if id(p) in ids]
    what = f"the loss does not depend on {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if names[6:] else "")
    if fatal:
        raise ConfigError(
            f"step {step + 1}, rank {dist_env.rank}: {what}: set trainer.ddp.find_unused_parameters=true, "
            "or take these parameters out of the model (see docs/troubleshooting.md#unused-parameters)"
        )
    if dist_env.rank == 0:
        log.warning("%s: these parameters are not trained", what)


def without_sync(net: nn.Module) -> AbstractContextManager[Any]:
    """No all-reduce in this block: DDP averages the gradients over ranks once, with the last micro-batch."""
    no_sync: Any = getattr(net, "no_sync", nullcontext)
    return no_sync()
