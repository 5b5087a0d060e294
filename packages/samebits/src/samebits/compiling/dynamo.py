"""torch.compile: of the losses in training, of the chain of batch transforms, and of evaluations; or of a model's
blocks alone, which are alike and compiled once, however many there are.

CUDA graphs (reduce-overhead, max-autotune) are for training alone. They write their results where the last ones were,
and what a transform or an evaluation returns is kept longer than that.
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

RECOMPILES = 64  # of one function, before torch runs it eagerly: splits, objectives and sizes share functions here


def compiled(net: nn.Module, config: HardwareConfig, machine: Hardware) -> nn.Module:
    """`net` compiled for training. A module may list names of methods that stay eager in an attribute `not_compiled`.

    torch splits a compiled graph at DDP's buckets. Before 2.13 it could not split one with activation checkpointing, so
    that stays whole: gradients are then averaged after the whole backward pass, without overlap. With
    hardware.compile=blocks `compile_blocks` has done it, and DDP's own hooks average bucket by bucket.
    """
    if machine.compile == BLOCKS:
        return net
    ddp = isinstance(net, nn.parallel.DistributedDataParallel)
    if ddp and config.activation_checkpointing and torch.__version__ < "2.13":
        from torch._dynamo import config as dynamo

        dynamo.optimize_ddp = False
    found = _compiled(net, machine, for_training=True)
    if machine.device == "cuda" and machine.compile in CUDA_GRAPHS:
        # all results of the last replay have been used
        found.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
        if len(machine.micro_batch_sizes) > 1 and not ddp:  # DDP copies gradients into its buckets
            for p in net.parameters():
                if p.requires_grad:
                    p.register_hook(torch.clone)  # the next micro-batch's replay would write over them
    return found


def for_evaluation(net: nn.Module, machine: Hardware) -> nn.Module:
    """`net` compiled for an evaluation if hardware.compile is set, else itself. The same module, or one built alike, is
    compiled once. (Blocks of a sharded model, and those of hardware.compile=blocks, were compiled for training.)"""
    if machine.compile in (None, BLOCKS) or is_sharded(net):
        return net
    return _compiled(net, machine, for_training=False)


def compile_blocks(model: nn.Module, machine: Hardware) -> None:
    """With hardware.compile=blocks: compile the blocks of the model, in place. Names of weights stay, and what is
    between them runs eagerly. (A sharded model's blocks are compiled already.)"""
    if machine.compile != BLOCKS or is_sharded(model):
        return
    blocks = find_blocks(model, "auto", "hardware.compile")
    if not blocks:
        raise ConfigError(f"hardware.compile=blocks: {type(model).__name__} has no list of blocks - use default")
    _allow_recompiles()
    for block in blocks.values():
        _keep_eager(block)
        block.compile()


def _keep_eager(net: nn.Module) -> None:
    for module in net.modules():
        for name in getattr(module, "not_compiled", ()):
            if name not in vars(module):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))


def _compiled(net: nn.Module, machine: Hardware, for_training: bool) -> nn.Module:
    _keep_eager(net)
    mode = machine.compile
    if not for_training:
        mode = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}.get(str(mode), mode)
    _allow_recompiles()
    return torch.compile(net, mode=mode)  # type: ignore[return-value]


def _allow_recompiles() -> None:
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, RECOMPILES)


class CompiledChain:
    """A batch transform, compiled. The first batch goes through it eagerly: a mistake is told in its own words, and
    what a transform keeps on the device is moved there."""

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform: Callable[..., Any] = transform
        self.began = False

    def __call__(self, *args: Any) -> Any:
        if not self.began:
            found = self.transform(*args)
            self.began = True
            _allow_recompiles()
            self.transform = torch.compile(self.transform)
            return found
        return self.transform(*args)


def compile_report(say: Callable[[str], None]) -> float:
    """Seconds that this process has spent compiling since the last call. Says which functions were compiled again and
    why."""
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
            say(f"compiled again: {entry.co_name} ({file}:{entry.co_firstlineno}), {took_s:.1f} s: {reason.strip()}")
    return total_s
