"""A model in a rank: built, moved or sharded, wrapped and compiled, as the groups `trainer` and `hardware` want it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from samebits.compiling import compile_blocks, compiled
from samebits.device import Hardware, WithBf16Weights, in_channels_last
from samebits.errors import ConfigError, first_line
from samebits.loggers import Logger
from samebits.parallel import NeedsValues, build_on_meta, checkpoint_activations, find_blocks, shard, wrap_net
from samebits.process.options import Options
from samebits.shards import is_sharded
from samebits.steps import seed_everything
from samebits.world import World


def model_of_rank(make: Callable[[], nn.Module], why: str | None, seed: int, world: World, logger: Logger) -> nn.Module:
    """Return make() for trainer=fsdp, behind seed_everything: with weights on rank 0, on other ranks without memory
    where the model allows that and `why`, a reason against it, is None. All ranks go on with rank 0's random state."""
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
        logger.say(f"trainer=fsdp: each process builds the whole {kind} in host memory first ({reasons[0]})")
    state = torch.get_rng_state()
    world.broadcast([state])
    torch.set_rng_state(state)
    return model


def to_devices(
    model: nn.Module, ema: nn.Module | None, task: nn.Module, config: Options, machine: Hardware, world: World
) -> None:
    """Move the modules to the device, in place; with trainer=fsdp and several ranks, shard the models over their
    devices. With hardware.compile=blocks their blocks are compiled."""
    hardware, trainer = config.hardware, config.trainer
    if again := hardware.activation_checkpointing:
        blocks = find_blocks(model, again, "hardware.activation_checkpointing").values()
        checkpoint_activations(blocks, machine.compile is not None, hardware.activation_checkpointing_keeps)
    for part in (one for one in (model, ema) if one is not None):
        if trainer.strategy == "fsdp":
            assert trainer.fsdp is not None
            shard(part, trainer.fsdp, machine.precision, world, machine.compile is not None)
        else:
            part.to(world.device)
        compile_blocks(part, machine)
    task.to(world.device)
    if hardware.channels_last and not sum(map(in_channels_last, (model, ema, task))):
        raise ConfigError(
            f"hardware.channels_last=true: {type(model).__name__} has no weights of four dimensions (convolutions "
            "of images) - leave it false"
        )


def ready_net(net: nn.Module, model: nn.Module, config: Options, machine: Hardware, world: World) -> nn.Module:
    """Return the net, which calls the model, wrapped by DDP and torch.compile as the config says. FSDP models are
    sharded and compiled block by block already."""
    if config.hardware.precision == "bf16-weights":
        net = WithBf16Weights(net)
    if is_sharded(model):
        return net
    net = wrap_net(net, world, config.trainer)
    return compiled(net, config.hardware, machine) if machine.compile else net
