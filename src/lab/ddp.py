"""DistributedDataParallel as trainer.ddp sets it, and its complaint about unused parameters in one line."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.config import DDPConfig
from lab.distributed import rank
from lab.errors import ConfigError, RunFailed

log = logging.getLogger("lab")
REMEDY = "set trainer.ddp.find_unused_parameters=true, or take them out of the model"


def wrap_ddp(model: nn.Module, device: torch.device, options: DDPConfig) -> DistributedDataParallel:
    # buffers are broadcast before an evaluation or a checkpoint, not at each step; torch 2.13 renamed the argument
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    arguments: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    net = DistributedDataParallel(
        model, [device] if device.type == "cuda" else None, gradient_as_bucket_view=True,
        find_unused_parameters=options.find_unused_parameters, static_graph=options.static_graph,
        bucket_cap_mb=options.bucket_cap_mb, **arguments,
    )  # fmt: skip
    if options.comm_hook is not None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        # not PowerSGD's: it carries errors from step to step, which no checkpoint holds
        net.register_comm_hook(None, getattr(default_hooks, f"{options.comm_hook}_compress_hook"))
    return net


def with_sync_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """BatchNorm over the samples of all ranks; the names in a checkpoint stay."""
    if device.type == "cpu":
        raise ConfigError("trainer.sync_batchnorm=true: torch's SyncBatchNorm runs on a GPU only")
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError(f"trainer.sync_batchnorm=true: {type(model).__name__} has no BatchNorm; leave it false")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def unwrapped(net: nn.Module) -> DistributedDataParallel | None:
    """The DDP module of `net`, which may be compiled."""
    net = getattr(net, "_orig_mod", net)
    return net if isinstance(net, DistributedDataParallel) else None


def name_unused(net: nn.Module, model: nn.Module) -> None:
    """After the first backward: name the parameters of `model`, the bare one of `net`, that have no gradient.

    A ConfigError where DDP has then averaged only some of the gradients; elsewhere a warning.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not names:
        return
    ddp = unwrapped(net)
    if ddp is not None and not (ddp.find_unused_parameters or ddp.static_graph):
        raise ConfigError(f"the loss does not depend on the parameters {_some(names)}: {REMEDY}")
    if rank() == 0:
        log.warning("the loss does not depend on the parameters %s: they are not trained", _some(names))


@contextmanager
def naming_late_unused(net: nn.Module) -> Iterator[None]:
    """A later step may leave gradients out; DDP finds that at the next forward and names them by number."""
    try:
        yield
    except RuntimeError as error:
        ddp, found = unwrapped(net), re.search(r"did not receive grad for rank (\d+): ([\d ]+)", str(error))
        if ddp is None or found is None:
            raise
        names = [name for name, p in ddp.module.named_parameters() if p.requires_grad]
        unused = _some([names[int(number)] for number in found[2].split()])
        raise RunFailed(
            f"on rank {found[1]} a step's loss did not depend on the parameters {unused}: {REMEDY}"
        ) from error


def _some(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
