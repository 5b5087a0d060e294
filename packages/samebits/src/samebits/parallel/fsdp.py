"""Shard weights, gradients and optimizer state over the ranks (trainer=fsdp; FSDP2, Zhao et al. 2023).

    blocks      all-gathered one by one before their forward and backward; resharded after each
    the rest    one additional unit (embeddings, head)
    gradients   averaged and sharded (reduce-scatter) as soon as a block's backward is done

The model remains the same module with the same parameter names; its parameters become DTensors. Elementwise operations
(clipping, fused optimizers, the weight average) get the local shards. checkpoints/sharded.py writes and reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from samebits.errors import ConfigError, first_line
from samebits.parallel import blocks
from samebits.shards import is_dtensor, local_parts
from samebits.world import World

if TYPE_CHECKING:
    from samebits.parallel.options import FsdpConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
PADDED = 0.1  # warn if padding is more than this share of the weights
KEY = "trainer.fsdp.wrap"
# Older versions fail silently: with torch 2.8, gloo's reduce_scatter returns the sum where FSDP requests the mean, and
# with 2.8 and 2.9 an optimizer that changes a sharding in place, such as Adafactor, computes wrong weights.
FIRST_TORCH = "2.10"


def check_torch() -> None:
    """Raise ConfigError if torch is older than FIRST_TORCH."""
    if torch.__version__ < FIRST_TORCH:
        raise ConfigError(
            f"trainer=fsdp: requires torch {FIRST_TORCH} or newer, because older ones may compute wrong gradients "
            f"or weights without an error, but torch is {torch.__version__} - install a newer one, or use trainer=ddp"
        )


def shard(model: nn.Module, config: FsdpConfig, precision: str, world: World, compiled: bool) -> None:
    """Shard `model` over the ranks and move it to their devices, in place.

    The values come from rank 0, where the model is on the CPU; on other ranks it may be on `meta` (meta_init.py).
    Add a method `no_sync()` like DDP's. precision: hardware.precision, resolved. The forward pass runs under autocast,
    so norms and losses are computed as with trainer=ddp; blocks are gathered in param_dtype, all other weights in fp32.
    With one rank, only move the model. Raise ConfigError if the model or the options cannot be sharded, or if torch is
    older than FIRST_TORCH.
    """
    units = wrapped(model, config)
    if world.size == 1:
        if config.cpu_offload:
            raise ConfigError("trainer.fsdp.cpu_offload=true: requires at least 2 processes, got 1")
        model.to(world.device)
        return
    check_torch()
    _check(model, units, config, precision)
    if compiled:
        for unit in units.values() or [model]:
            _compile(unit)
    whole = [p.detach() for p in model.parameters()]
    _cut(model, [*units.values()], config, precision, world, compiled)
    _take_values_of_main(model, whole, config, world)
    if not config.reduce_each_micro_batch:
        model.no_sync = lambda: _without_sync(model)  # type: ignore[assignment]
    model.register_forward_hook(_cut_again)
    forward = model.forward

    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as cause:  # an operation that DTensors do not support
            if "sharding" not in str(cause).lower() and "DTensor" not in str(cause):
                raise
            wrong = "weights of a wrapped module are used outside of its forward (tied?), where they are sharded"
            raise ConfigError(f"{KEY}: {wrong}: do not wrap this module ({first_line(cause)})") from cause

    model.forward = explained


def _check(model: nn.Module, units: dict[str, nn.Module], config: FsdpConfig, precision: str) -> None:
    if type(model).forward is nn.Module.forward:  # a ModuleDict; but the model's forward gathers the weights
        raise ConfigError(
            f"trainer=fsdp: {type(model).__name__} has no forward, which would gather the weights - use trainer=ddp"
        )
    if config.cpu_offload and precision == "fp16":
        raise ConfigError("trainer.fsdp.cpu_offload=true: does not support hardware.precision=fp16 - use bf16")
    seen: set[nn.Parameter] = set()
    for prefix, unit in reversed([("", model), *((f"{name}.", unit) for name, unit in units.items())]):
        own = {f"{prefix}{name}": p for name, p in unit.named_parameters() if p not in seen}
        seen |= set(own.values())
        for name, p in own.items():
            if not p.numel():
                raise ConfigError(f"trainer=fsdp: {name} is empty: make it a buffer, or use trainer=ddp")
            if not p.dim():
                raise ConfigError(
                    f"trainer=fsdp: {name} has no dimension and cannot be sharded: use a tensor of shape (1,) "
                    "(torch.ones(1) instead of torch.tensor(1.0)), or use trainer=ddp"
                )
            if p.is_complex():
                raise ConfigError(
                    f"trainer=fsdp: {name} is complex, but gradients are averaged as real numbers: store real numbers "
                    "(torch.view_as_real), or use trainer=ddp"
                )
        first: dict[torch.dtype, str] = {}
        for name, p in own.items():
            if p.requires_grad:
                first.setdefault(p.dtype, name)
        if len(first) > 1:
            kinds = ", ".join(f"{name} is {dtype}".replace("torch.", "") for dtype, name in first.items())
            raise ConfigError(
                f"trainer=fsdp: weights that are gathered together must have the same dtype, but {kinds} - convert "
                f"one, add its module to {KEY}, or use trainer=ddp"
            )


def _cut(
    model: nn.Module, units: list[nn.Module], config: FsdpConfig, precision: str, world: World, compiled: bool
) -> None:
    """Let FSDP shard the parameters of the units, then the other parameters of the model."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mesh = _mesh(config.replicas, world)
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if config.cpu_offload else OffloadPolicy()
    common: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
    last = units[-1] if units else None
    gathered: dict[nn.Module, list[Any]] = {}  # unit -> FSDP modules that are gathered for its forward
    for unit in reversed([model, *units]):  # the innermost first, the model last
        policy = _mixed_precision(unit, unit is model, config, precision)
        gathered[unit] = [unit]
        if policy.param_dtype is not None and not compiled and (norms := _norms(unit)):
            # all norms are one group, which is gathered in fp32 and kept until the backward pass because it is small.
            # (Not in a compiled block, because their hooks would break its graph.)
            whole_policy = replace(policy, param_dtype=None)
            fully_shard(norms, reshard_after_forward=False, mp_policy=whole_policy, **common)  # type: ignore[arg-type]
            gathered[unit].append(norms[0])
        # None is torch's default, which keeps the root unit gathered between forward and backward. The last block is
        # also kept, because its backward comes first.
        reshard = None if config.reshard_after_forward and unit is not last else False
        fully_shard(unit, reshard_after_forward=reshard, mp_policy=policy, **common)
    _prefetch([model, *units], gathered)


@torch.no_grad()
def _take_values_of_main(model: nn.Module, whole: Sequence[Tensor], config: FsdpConfig, world: World) -> None:
    """Broadcast rank 0's parameters, one after the other, and its buffers to the sharded model.

    whole: the parameters before they were sharded, with values on rank 0.
    """
    import torch.distributed as dist

    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        model.to_empty(device="cpu" if config.cpu_offload else world.device)
        for buffer in model.buffers():
            buffer.data = buffer.to(world.device)
    for full, part in zip(whole, model.parameters(), strict=True):
        # not distribute_tensor: on CUDA it would also copy rank 0's random state to all ranks
        sent = full.to(world.device).contiguous() if world.is_main else full.new_empty(full.shape, device=world.device)
        dist.broadcast(sent, src=0)
        if not world.is_main:  # rank 0 already has its shard
            part.to_local().copy_(_own_part(sent, part))  # type: ignore[attr-defined]
    world.broadcast_buffers(model)


def _own_part(whole: Tensor, like: Any) -> Tensor:
    """Return this rank's shard of a whole tensor. like: a DTensor of the same shape with the sharding to use."""
    for dim, placement in enumerate(like.placements):
        if placement.is_shard():
            parts = whole.chunk(like.device_mesh.size(dim), placement.dim)
            number = like.device_mesh.get_local_rank(dim)
            whole = parts[number] if number < len(parts) else whole.narrow(placement.dim, 0, 0)
    return whole


def _compile(unit: nn.Module) -> None:
    """Compile the forward of a unit as one graph, without FSDP's hooks. Parameter names stay the same."""
    forward = torch.compile(unit.forward, fullgraph=True)
    name = type(unit).__name__

    def compiled(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.exc import Unsupported

        try:
            return forward(*args, **kwargs)
        except Unsupported as error:
            raise ConfigError(
                f"hardware.compile: with trainer=fsdp, the forward of {name} must be one graph, but torch.compile "
                f"breaks it ({first_line(error)}) - set trainer.fsdp.wrap to modules without such code, or remove "
                "hardware.compile"
            ) from error

    unit.forward = compiled


def _prefetch(units: list[Any], gathered: dict[nn.Module, list[Any]]) -> None:
    """Gather the weights of the next unit while one computes, in forward and backward. units: in the model's order."""
    for unit, after in pairwise(units):
        unit.set_modules_to_forward_prefetch(gathered[after])
        if unit is not units[0]:
            after.set_modules_to_backward_prefetch([unit])


def _mesh(replicas: int, world: World) -> Any:
    """Return a device mesh, (ranks,) or (replicas, ranks / replicas). A row has consecutive ranks, so of one host."""
    from torch.distributed.device_mesh import init_device_mesh

    share, left = divmod(world.size, replicas)
    if left or share < 2:
        raise ConfigError(
            f"trainer.fsdp.replicas={replicas}: {world.size} processes cannot be divided into equal groups "
            "of at least 2 - for a copy in each process, use trainer=ddp"
        )
    if world.device.type == "cuda":
        torch.cuda.init()  # otherwise init_device_mesh would select another device
    if replicas == 1:
        return init_device_mesh(world.device.type, (share,))
    return init_device_mesh(world.device.type, (replicas, share), mesh_dim_names=("replicate", "shard"))


def wrapped(model: nn.Module, config: FsdpConfig) -> dict[str, nn.Module]:
    """Return {name: module} of the FSDP units, without the model itself. Raise ConfigError if one has no parameters.

    A module that shares a weight with a module outside of it is not a unit, because the weight is also used when the
    unit is not gathered.
    """
    found = blocks.find_blocks(model, config.wrap, KEY)
    users: dict[nn.Parameter, set[nn.Module]] = defaultdict(set)
    for module in model.modules():
        for p in module.parameters(recurse=False):
            users[p].add(module)
    units = {
        name: unit for name, unit in found.items() if all(users[p] <= set(unit.modules()) for p in unit.parameters())
    }
    for name, unit in units.items():
        if next(unit.parameters(), None) is None:
            raise ConfigError(f"{KEY}: {name} ({type(unit).__name__}) has no parameters to shard")
    return units


def _mixed_precision(unit: nn.Module, outermost: bool, config: FsdpConfig, precision: str) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.nn.modules.batchnorm import _NormBase

    param_dtype = DTYPES.get(precision) if config.param_dtype == "auto" else None
    # Autocast casts the weights of matmuls, so a block can be gathered in that dtype. It does not cast embeddings
    # (tables, positional parameters): with 16-bit embeddings the whole residual stream would have 16 bits. BatchNorm
    # requires weights of the same dtype as its running statistics.
    kept = (nn.Embedding, nn.EmbeddingBag, _NormBase)
    if outermost or isinstance(unit, NORMS) or any(isinstance(module, kept) for module in unit.modules()):
        param_dtype = None
    return MixedPrecisionPolicy(
        param_dtype=param_dtype,
        reduce_dtype=DTYPES.get(config.reduce_dtype, torch.float32),
        cast_forward_inputs=False,  # autocast casts the inputs of each operation
    )


def _norms(unit: nn.Module) -> list[nn.Module]:
    """Return the unit's norms (fp32 weights, computed in fp32) that no inner unit has already sharded."""
    found = [m for m in unit.modules() if m is not unit and isinstance(m, NORMS) and not hasattr(m, "reshard")]
    return [norm for norm in found if next(norm.parameters(recurse=False), None) is not None]


@contextmanager
def _without_sync(model: Any) -> Iterator[None]:
    """Keep gradients unsharded and unreduced on their rank until a backward pass outside of this block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _cut_again(model: Any, inputs: Any, output: Any) -> None:
    """Reshard after the forward of an evaluation: FSDP keeps the root unit gathered for a backward."""
    if not torch.is_grad_enabled():
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()


def local_share(model: nn.Module) -> tuple[int, int]:
    """Return the numbers of parameters (on this rank, in total)."""
    own = sum(part.numel() for part in local_parts(model.parameters()))
    return own, sum(p.numel() for p in model.parameters())


def class_name(module: nn.Module) -> str:
    """Return the module's class name without the prefix of FSDP2, which replaces the class by FSDP<name>."""
    from torch.distributed.fsdp import FSDPModule

    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def describe_shards(model: nn.Module) -> str:
    """Return a line with the FSDP units and the parameters on this rank."""
    from torch.distributed.fsdp import FSDPModule

    own, total = local_share(model)
    units = [module for module in model.modules() if isinstance(module, FSDPModule) and not isinstance(module, NORMS)]
    kinds = [class_name(module) for module in units[1:]]
    counted = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return f"fsdp: {' + '.join([*counted, 'the rest'])}; rank 0 has {own:,} of {total:,} parameters"


def padding_note(model: nn.Module) -> str:
    """Return a warning if padding adds more than PADDED to the weights that are sent, otherwise an empty string."""
    held = sent = processes = 0
    for p in model.parameters():
        if is_dtensor(p):
            processes = p.device_mesh.size(p.device_mesh.ndim - 1)  # type: ignore[attr-defined]
            held, sent = held + p.numel(), sent + -(-p.shape[0] // processes) * processes * (p.numel() // p.shape[0])
    if sent <= (1 + PADDED) * held:
        return ""
    return (
        f"fsdp: padding adds {sent / held - 1:.0%} to the weights that are sent, because they have few rows for "
        f"{processes} processes - trainer.fsdp.replicas=... shards over fewer processes (docs/fsdp.md)"
    )
