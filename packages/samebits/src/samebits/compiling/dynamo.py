"""Apply torch.compile to the losses in training, to the chain of batch transforms and to evaluation; or only to the
blocks of a model, which have the same code and are compiled once.

CUDA graphs (reduce-overhead, max-autotune) are used in training only. They write results to the same memory each time,
but results of transforms and evaluations are kept longer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from samebits.device import BLOCKS, CUDA_GRAPHS, Hardware, HardwareConfig
from samebits.errors import ConfigError
from samebits.parallel import find_blocks
from samebits.shards import is_sharded

RECOMPILES = 64  # limit per function, then torch runs it eagerly; splits, objectives and sizes share functions


def compiled(net: nn.Module, config: HardwareConfig, hardware: Hardware) -> nn.Module:
    """Return `net` compiled for training. A module can list methods that stay eager in its attribute `not_compiled`.

    torch splits a compiled graph at DDP's buckets. Before torch 2.13 it cannot split a graph with activation
    checkpointing, so the graph stays whole: gradients are averaged after the backward pass, without overlap. With
    hardware.compile=blocks, `compile_blocks` has compiled the blocks already, and DDP's hooks average each bucket.
    """
    if hardware.compile == BLOCKS:
        return net
    ddp = isinstance(net, nn.parallel.DistributedDataParallel)
    if ddp and config.activation_checkpointing and torch.__version__ < "2.13":
        from torch._dynamo import config as dynamo

        dynamo.optimize_ddp = False
    found = _compiled(net, hardware, for_training=True)
    if hardware.device == "cuda" and hardware.compile in CUDA_GRAPHS:
        # all results of the last replay have been read
        found.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
        if len(hardware.micro_batch_sizes) > 1 and not ddp:  # DDP copies gradients into its buckets
            for p in net.parameters():
                if p.requires_grad:
                    p.register_hook(torch.clone)  # otherwise the next micro-batch's replay overwrites them
    return found


def for_evaluation(net: nn.Module, hardware: Hardware) -> nn.Module:
    """Return `net` compiled for an evaluation if hardware.compile is set, otherwise itself. The same module, or one
    with the same code, is compiled once. Blocks of a sharded model, or with hardware.compile=blocks, were already
    compiled for training."""
    if hardware.compile in (None, BLOCKS) or is_sharded(net):
        return net
    return _compiled(net, hardware, for_training=False)


def compile_blocks(model: nn.Module, hardware: Hardware) -> None:
    """Compile the blocks of the model in place if hardware.compile=blocks. Names of weights do not change; code between
    the blocks runs eagerly. Raise ConfigError if the model has no blocks. Blocks of a sharded model are compiled
    elsewhere."""
    if hardware.compile != BLOCKS or is_sharded(model):
        return
    blocks = find_blocks(model, "auto", "hardware.compile")
    if not blocks:
        raise ConfigError(
            f"hardware.compile=blocks: {type(model).__name__} has no list of blocks - use hardware.compile=default"
        )
    _allow_recompiles()
    for block in blocks.values():
        _keep_eager(block)
        block.compile()


def _keep_eager(net: nn.Module) -> None:
    for module in net.modules():
        for name in getattr(module, "not_compiled", ()):
            if name not in vars(module):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))


def _compiled(net: nn.Module, hardware: Hardware, for_training: bool) -> nn.Module:
    _keep_eager(net)
    mode = hardware.compile
    if not for_training:
        mode = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}.get(str(mode), mode)
    _allow_recompiles()
    return torch.compile(net, mode=mode)  # type: ignore[return-value]


def _allow_recompiles() -> None:
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, RECOMPILES)


class CompiledChain:
    """A compiled batch transform. The first batch is transformed eagerly, so that errors have their own messages and
    tensors of transforms are moved to the device."""

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform: Callable[..., Any] = transform
        self.began = False

    def __call__(self, *args: Any) -> Any:
        """Transform a batch."""
        if not self.began:
            found = self.transform(*args)
            self.began = True
            _allow_recompiles()
            self.transform = torch.compile(self.transform)
            return found
        return self.transform(*args)


def compile_report(say: Callable[[str], None]) -> float:
    """Return the seconds that this process has spent compiling since the last call. Print functions that were
    recompiled, and why."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0.0
    entries = utils.get_compilation_metrics()
    utils.clear_compilation_metrics()
    total_s = 0.0
    for entry in entries:
        took_s = (getattr(entry, "duration_us", None) or 0) / 1e6
        total_s += took_s
        if reason := getattr(entry, "recompile_reason", None):
            file = os.path.basename(entry.co_filename or "")
            say(f"recompiled: {entry.co_name} ({file}:{entry.co_firstlineno}), {took_s:.1f} s: {reason.strip()}")
    return total_s
