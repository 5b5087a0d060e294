"""trainer=fsdp: weights, gradients and optimizer state cut over the ranks (FSDP2, Zhao et al. 2023).

    blocks      gathered before their forward and backward, one after the other; freed after each
    the rest    one unit of its own (embeddings, head)
    gradients   averaged and cut again as soon as a block's backward is done

The model stays the module it was, under its own names; its parameters are DTensors, which the optimizers, the norm of
the gradients and the moving average take as they are. shards.py writes and reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from engine.errors import ConfigError, RunFailed
from engine.ranks import blocks
from engine.ranks.distributed import World

if TYPE_CHECKING:
    from engine.ranks.options import FsdpConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
KEY = "trainer.fsdp.wrap"


def shard(model: nn.Module, config: FsdpConfig, precision: str, world: World, compiled: bool) -> None:
    """Cut `model`, whole on the host, over the ranks, and move it to their devices, in place.

    From then on it has `no_sync()` as DDP has. precision: hardware.precision, decided. The forward pass stays under
    autocast, so that norms and losses are computed as with trainer=ddp; param_dtype is how blocks are gathered, and
    what is in no block is gathered in fp32. With one rank there is nothing to cut: the model is moved.
    """
    units = wrapped(model, config)
    if world.size == 1:
        if config.cpu_offload:
            raise ConfigError("trainer.fsdp.cpu_offload=true: wants two processes or more, and there is one")
        model.to(world.device)
        return
    if type(model).forward is nn.Module.forward:  # a ModuleDict; weights are gathered by the model's forward
        raise ConfigError(
            f"trainer=fsdp: a {type(model).__name__} has no forward of its own, in which its parts would be gathered - "
            "use trainer=ddp"
        )
    if config.cpu_offload and precision == "fp16":
        raise ConfigError("trainer.fsdp.cpu_offload=true: not with hardware.precision=fp16 - use bf16")
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mesh = _mesh(config.replicas, world)
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if config.cpu_offload else OffloadPolicy()
    if compiled:
        for unit in units.values() or [model]:
            unit.compile()
    common: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
    for unit in reversed([model, *units.values()]):  # the innermost first, the model last
        policy = _mixed_precision(unit, unit is model, config, precision)
        if policy.param_dtype is not None and not compiled and (norms := _norms(unit)):
            # gathered together, as they are stored, and kept until the backward pass: they are small. (Their hooks
            # would cut a compiled block into pieces.)
            whole_policy = replace(policy, param_dtype=None)
            fully_shard(norms, reshard_after_forward=False, mp_policy=whole_policy, **common)  # type: ignore[arg-type]
        # null: torch's own choice, which keeps the model's own unit whole between forward and backward
        reshard = None if config.reshard_after_forward else False
        fully_shard(unit, reshard_after_forward=reshard, mp_policy=policy, **common)
    if not config.reduce_each_micro_batch:
        model.no_sync = lambda: _without_sync(model)  # type: ignore[assignment]
    model.register_forward_hook(_cut_again)
    wrong = (
        f"{KEY}: weights of a wrapped module are used outside of its forward (tied?), where they are cut: leave it out"
    )
    forward = model.forward

    def explained(*args: Any, **kwargs: Any) -> Any:
        with _explained(wrong, ConfigError):
            return forward(*args, **kwargs)

    model.forward = explained


def _mesh(replicas: int, world: World) -> Any:
    """The ranks in a row; with copies, a row for each: ranks that follow each other, so those of one host."""
    from torch.distributed.device_mesh import init_device_mesh

    share, left = divmod(world.size, replicas)
    if left or share < 2:
        raise ConfigError(
            f"trainer.fsdp.replicas={replicas}: {world.size} processes cannot be shared by so many copies, two or more "
            "for each - trainer=ddp has a copy in each process"
        )
    if world.device.type == "cuda":
        torch.cuda.init()  # else the mesh would choose a device of its own
    if replicas == 1:
        return init_device_mesh(world.device.type, (share,))
    return init_device_mesh(world.device.type, (replicas, share), mesh_dim_names=("replicate", "shard"))


def wrapped(model: nn.Module, config: FsdpConfig) -> dict[str, nn.Module]:
    """The units beside the model itself."""
    units = blocks.find(model, config.wrap, KEY)
    for name, unit in units.items():
        if next(unit.parameters(), None) is None:
            raise ConfigError(f"{KEY}: {name} ({type(unit).__name__}) has no parameters to shard")
    return units


def _mixed_precision(unit: nn.Module, outermost: bool, config: FsdpConfig, precision: str) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.nn.modules.batchnorm import _NormBase

    param_dtype = DTYPES.get(precision) if config.param_dtype == "auto" else None
    # Autocast casts the weights of products, so a block's can be gathered in that type. Embeddings (tables, a
    # parameter for positions) it leaves alone: 16-bit ones would make the whole residual stream 16 bits wide. And
    # BatchNorm refuses weights of another type than its running statistics.
    kept = (nn.Embedding, nn.EmbeddingBag, _NormBase)
    if outermost or isinstance(unit, NORMS) or any(isinstance(module, kept) for module in unit.modules()):
        param_dtype = None
    return MixedPrecisionPolicy(
        param_dtype=param_dtype,
        reduce_dtype=DTYPES.get(config.reduce_dtype, torch.float32),
        cast_forward_inputs=False,  # autocast does that, operation by operation
    )


def _norms(unit: nn.Module) -> list[nn.Module]:
    """The unit's norms, which compute in fp32, and with fp32 weights: those that no inner unit has sharded already."""
    found = [m for m in unit.modules() if m is not unit and isinstance(m, NORMS) and not hasattr(m, "reshard")]
    return [norm for norm in found if next(norm.parameters(recurse=False), None) is not None]


@contextmanager
def _without_sync(model: Any) -> Iterator[None]:
    """Gradients stay whole on their rank, until a backward pass outside of this averages and cuts them."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _cut_again(model: Any, inputs: Any, output: Any) -> None:
    """FSDP keeps the outermost weights gathered for a backward pass, which does not come in an evaluation."""
    if not torch.is_grad_enabled():
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()


@contextmanager
def _explained(wrong: str, error: type[Exception]) -> Iterator[None]:
    """error(wrong) where DTensors are asked for what they cannot do."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as cause:
        if "sharding" not in str(cause).lower() and "DTensor" not in str(cause):
            raise
        raise error(f"{wrong} ({str(cause).splitlines()[0]})") from cause


def sharded_mistakes(optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
    """For an optimizer's step on sharded weights, of which some optimizers know nothing."""
    return _explained(f"optim: {type(optimizer).__name__} cannot update sharded weights", RunFailed)


def is_part(value: Tensor | None) -> bool:
    """A DTensor: what this rank holds of a tensor. (Asked without importing what a plain run does not need.)"""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """A tensor that lies in parts on the ranks, on all of them; all ranks call this."""
    return value.full_tensor() if is_part(value) else value  # type: ignore[attr-defined]


def is_sharded(model: nn.Module) -> bool:
    return any(is_part(p) for p in model.parameters())


def local_share(model: nn.Module) -> tuple[int, int]:
    """Parameters (on this rank, altogether)."""
    own = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
    return own, sum(p.numel() for p in model.parameters())


def class_name(module: nn.Module) -> str:
    """As it was written: FSDP2 gives a module a class of its own."""
    from torch.distributed.fsdp import FSDPModule

    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def describe(model: nn.Module) -> str:
    from torch.distributed.fsdp import FSDPModule

    own, total = local_share(model)
    units = [module for module in model.modules() if isinstance(module, FSDPModule) and not isinstance(module, NORMS)]
    kinds = [class_name(module) for module in units[1:]]
    counted = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return f"fsdp: {' + '.join([*counted, 'the rest'])}; rank 0 holds {own:,} of {total:,} parameters"
