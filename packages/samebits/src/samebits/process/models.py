"""Build, move or shard, wrap and compile a model in a rank, as the groups `trainer` and `hardware` require."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from samebits.compiling import compile_blocks, compiled
from samebits.device import Hardware, WithBf16Weights, in_channels_last
from samebits.errors import ConfigError, first_line
from samebits.loggers import Logger
from samebits.parallel import (
    NeedsValues,
    build_on_meta,
    check_torch,
    checkpoint_activations,
    find_blocks,
    shard,
    wrap_net,
)
from samebits.process.options import Options
from samebits.shards import is_sharded
from samebits.steps import seed_everything
from samebits.world import World


def model_of_rank(make: Callable[[], nn.Module], why: str | None, seed: int, world: World, logger: Logger) -> nn.Module:
    """Return make() for trainer=fsdp; call seed_everything before it.

    Rank 0 builds the model with its weights. Other ranks build it on `meta`, unless the model needs values or `why`, a
    reason against it, is not None. Afterwards all ranks have rank 0's random state.
    """
    check_torch()
    model = None
    if world.rank and why is None:
        try:
            model = build_on_meta(make)
        except (ConfigError, NeedsValues) as error:
            why = first_line(error.__cause__ or error)
            seed_everything(seed)
    model = make() if model is None else model
    if reasons := [reason for reason in world.gather_object(why) if reason]:
        kind = type(model).__name__
        logger.say(f"trainer=fsdp: each process first builds the whole {kind} in host memory ({reasons[0]})")
    state = torch.get_rng_state()
    world.broadcast([state])
    torch.set_rng_state(state)
    return model


def to_devices(
    model: nn.Module, ema: nn.Module | None, task: nn.Module, config: Options, hardware: Hardware, world: World
) -> None:
    """Move the modules to the device, in place; with trainer=fsdp and several ranks, shard the models.

    Apply activation checkpointing and, with hardware.compile=blocks, compile the blocks. Raise ConfigError for options
    that do not fit the model.
    """
    options, trainer = config.hardware, config.trainer
    if again := options.activation_checkpointing:
        blocks = find_blocks(model, again, "hardware.activation_checkpointing").values()
        checkpoint_activations(blocks, hardware.compile is not None, options.activation_checkpointing_keeps)
    for part in (one for one in (model, ema) if one is not None):
        if trainer.strategy == "fsdp":
            assert trainer.fsdp is not None
            shard(part, trainer.fsdp, hardware.precision, world, hardware.compile is not None)
        else:
            part.to(world.device)
        compile_blocks(part, hardware)
    task.to(world.device)
    if options.channels_last and not sum(map(in_channels_last, (model, ema, task))):
        raise ConfigError(
            f"hardware.channels_last=true: {type(model).__name__} has no weights with 4 dimensions (2D convolutions) "
            "- set it to false"
        )


def ready_net(net: nn.Module, model: nn.Module, config: Options, hardware: Hardware, world: World) -> nn.Module:
    """Return the net, which calls the model, wrapped by DDP and torch.compile as configured.

    FSDP models are already sharded and compiled block by block.
    """
    if config.hardware.precision == "bf16-weights":
        net = WithBf16Weights(net)
    if is_sharded(model):
        return net
    net = wrap_net(net, world, config.trainer)
    return compiled(net, config.hardware, hardware) if hardware.compile else net
