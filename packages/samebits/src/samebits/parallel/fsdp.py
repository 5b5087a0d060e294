"""trainer=fsdp: weights, gradients and optimizer state sharded over the ranks (FSDP2, Zhao et al. 2023).

    blocks      all-gathered one by one before their forward and backward; resharded after each
    the rest    one unit of its own (embeddings, head)
    gradients   averaged and sharded (reduce-scatter) as soon as a block's backward is done

The model stays the module it was, under its own names; its parameters are DTensors. What works element by element on
them (clipping, fused optimizers, the moving average) is given the local shards. shards.py writes and reads them.
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
from samebits.shards import is_part, local_parts
from samebits.world import World

if TYPE_CHECKING:
    from samebits.parallel.options import FsdpConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
PADDED = 0.1  # of what is sent
KEY = "trainer.fsdp.wrap"


def shard(model: nn.Module, config: FsdpConfig, precision: str, world: World, compiled: bool) -> None:
    """Shard `model` over the ranks and move it to their devices, in place. Its parameters and buffers will be rank 0's,
    whose model is on the CPU; other ranks' may be on `meta` (meta_init.py).

    Adds `no_sync()` as DDP has. precision: hardware.precision without auto. The forward pass stays under autocast, so
    norms and losses are computed as with trainer=ddp; blocks are gathered in param_dtype, all other weights in fp32.
    With one rank the model is only moved.
    """
    units = wrapped(model, config)
    if world.size == 1:
        if config.cpu_offload:
            raise ConfigError("trainer.fsdp.cpu_offload=true: wants two processes or more, and there is one")
        model.to(world.device)
        return
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
            wrong = "weights of a wrapped module are used outside of its forward (tied?), where they are cut"
            raise ConfigError(f"{KEY}: {wrong}: leave it out ({first_line(cause)})") from cause

    model.forward = explained


def _check(model: nn.Module, units: dict[str, nn.Module], config: FsdpConfig, precision: str) -> None:
    if type(model).forward is nn.Module.forward:  # a ModuleDict; weights are gathered by the model's forward
        raise ConfigError(
            f"trainer=fsdp: a {type(model).__name__} has no forward of its own, in which its parts would be gathered - "
            "use trainer=ddp"
        )
    if config.cpu_offload and precision == "fp16":
        raise ConfigError("trainer.fsdp.cpu_offload=true: not with hardware.precision=fp16 - use bf16")
    seen: set[nn.Parameter] = set()
    for prefix, unit in reversed([("", model), *((f"{name}.", unit) for name, unit in units.items())]):
        own = {f"{prefix}{name}": p for name, p in unit.named_parameters() if p not in seen}
        seen |= set(own.values())
        for name, p in own.items():
            if not p.numel():
                raise ConfigError(f"trainer=fsdp: {name} is empty: make it a buffer, or use trainer=ddp")
            if not p.dim():
                raise ConfigError(
                    f"trainer=fsdp: {name} has no dimension along which it could be cut: give it one, of size 1 "
                    "(torch.ones(1) instead of torch.tensor(1.0)), or use trainer=ddp"
                )
            if p.is_complex():
                raise ConfigError(
                    f"trainer=fsdp: {name} is complex, and gradients are averaged as real numbers: hold real ones "
                    "(torch.view_as_real), or use trainer=ddp"
                )
        first: dict[torch.dtype, str] = {}
        for name, p in own.items():
            if p.requires_grad:
                first.setdefault(p.dtype, name)
        if len(first) > 1:
            kinds = ", ".join(f"{name} is {dtype}".replace("torch.", "") for dtype, name in first.items())
            raise ConfigError(
                f"trainer=fsdp: weights that are gathered together must be of one type, and {kinds} - make them alike, "
                f"name the module of one in {KEY}, or use trainer=ddp"
            )


def _cut(
    model: nn.Module, units: list[nn.Module], config: FsdpConfig, precision: str, world: World, compiled: bool
) -> None:
    """Have FSDP cut the units' parameters, then those of the rest of the model."""
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
            # all norms are one group, gathered in fp32 and kept until the backward pass, as they are small. (Not in a
            # compiled block: their hooks would break its graph.)
            whole_policy = replace(policy, param_dtype=None)
            fully_shard(norms, reshard_after_forward=False, mp_policy=whole_policy, **common)  # type: ignore[arg-type]
            gathered[unit].append(norms[0])
        # None: torch's default, which keeps the root unit gathered between forward and backward. So is the last block,
        # whose backward comes first.
        reshard = None if config.reshard_after_forward and unit is not last else False
        fully_shard(unit, reshard_after_forward=reshard, mp_policy=policy, **common)
    _prefetch([model, *units], gathered)


@torch.no_grad()
def _take_values_of_main(model: nn.Module, whole: Sequence[Tensor], config: FsdpConfig, world: World) -> None:
    """Give the sharded model rank 0's parameters, one after the other, and its buffers. whole: the parameters before
    they were cut, with values on rank 0."""
    import torch.distributed as dist

    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        model.to_empty(device="cpu" if config.cpu_offload else world.device)
        for buffer in model.buffers():
            buffer.data = buffer.to(world.device)
    for full, part in zip(whole, model.parameters(), strict=True):
        # not by distribute_tensor: on CUDA it would give all ranks rank 0's random state too
        sent = full.to(world.device).contiguous() if world.is_main else full.new_empty(full.shape, device=world.device)
        dist.broadcast(sent, src=0)
        if not world.is_main:  # which has cut its own
            part.to_local().copy_(_own_part(sent, part))  # type: ignore[attr-defined]
    world.broadcast_buffers(model)


def _own_part(whole: Tensor, like: Any) -> Tensor:
    """This rank's part of a whole tensor. like: the DTensor that it is a part of."""
    for dim, placement in enumerate(like.placements):
        if placement.is_shard():
            parts = whole.chunk(like.device_mesh.size(dim), placement.dim)
            number = like.device_mesh.get_local_rank(dim)
            whole = parts[number] if number < len(parts) else whole.narrow(placement.dim, 0, 0)
    return whole


def _compile(unit: nn.Module) -> None:
    """Its forward as one graph, before FSDP's hooks, which stay outside of it. (Not the module: names stay.)"""
    forward = torch.compile(unit.forward, fullgraph=True)
    name = type(unit).__name__

    def compiled(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.exc import Unsupported

        try:
            return forward(*args, **kwargs)
        except Unsupported as error:
            raise ConfigError(
                f"hardware.compile: with trainer=fsdp the forward of {name} must be one graph, and torch cannot make "
                f"it one ({first_line(error)}) - set trainer.fsdp.wrap to modules without such code, or leave compile "
                "out"
            ) from error

    unit.forward = compiled


def _prefetch(units: list[Any], gathered: dict[nn.Module, list[Any]]) -> None:
    """Gather the next unit's weights while one computes, forward and backward. units: in the model's order."""
    for unit, after in pairwise(units):
        unit.set_modules_to_forward_prefetch(gathered[after])
        if unit is not units[0]:
            after.set_modules_to_backward_prefetch([unit])


def _mesh(replicas: int, world: World) -> Any:
    """Device mesh, (ranks,) or (replicas, ranks / replicas): a row holds consecutive ranks, so those of one host."""
    from torch.distributed.device_mesh import init_device_mesh

    share, left = divmod(world.size, replicas)
    if left or share < 2:
        raise ConfigError(
            f"trainer.fsdp.replicas={replicas}: {world.size} processes cannot be shared by so many copies, two or more "
            "for each - trainer=ddp has a copy in each process"
        )
    if world.device.type == "cuda":
        torch.cuda.init()  # else init_device_mesh would set another device
    if replicas == 1:
        return init_device_mesh(world.device.type, (share,))
    return init_device_mesh(world.device.type, (replicas, share), mesh_dim_names=("replicate", "shard"))


def wrapped(model: nn.Module, config: FsdpConfig) -> dict[str, nn.Module]:
    """{name: module} of the FSDP units beside the model itself. What shares a weight with a module outside of it is
    none: its weights are used where it has not gathered them."""
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
    # (tables, positional parameters): 16-bit ones would turn the whole residual stream to 16 bits. BatchNorm refuses
    # weights of another dtype than its running statistics.
    kept = (nn.Embedding, nn.EmbeddingBag, _NormBase)
    if outermost or isinstance(unit, NORMS) or any(isinstance(module, kept) for module in unit.modules()):
        param_dtype = None
    return MixedPrecisionPolicy(
        param_dtype=param_dtype,
        reduce_dtype=DTYPES.get(config.reduce_dtype, torch.float32),
        cast_forward_inputs=False,  # autocast does that, operation by operation
    )


def _norms(unit: nn.Module) -> list[nn.Module]:
    """The unit's norms (computed in fp32, with fp32 weights) that no inner unit has sharded already."""
    found = [m for m in unit.modules() if m is not unit and isinstance(m, NORMS) and not hasattr(m, "reshard")]
    return [norm for norm in found if next(norm.parameters(recurse=False), None) is not None]


@contextmanager
def _without_sync(model: Any) -> Iterator[None]:
    """Gradients stay unsharded and unreduced on their rank until a backward pass outside of this block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _cut_again(model: Any, inputs: Any, output: Any) -> None:
    """Reshard after an evaluation's forward: FSDP keeps the root unit gathered for a backward, which does not come."""
    if not torch.is_grad_enabled():
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()


def local_share(model: nn.Module) -> tuple[int, int]:
    """Numbers of parameters (on this rank, in total)."""
    own = sum(part.numel() for part in local_parts(model.parameters()))
    return own, sum(p.numel() for p in model.parameters())


def class_name(module: nn.Module) -> str:
    """The module's class name as in its source: FSDP2 replaces the class by FSDP<name>."""
    from torch.distributed.fsdp import FSDPModule

    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def describe_shards(model: nn.Module) -> str:
    from torch.distributed.fsdp import FSDPModule

    own, total = local_share(model)
    units = [module for module in model.modules() if isinstance(module, FSDPModule) and not isinstance(module, NORMS)]
    kinds = [class_name(module) for module in units[1:]]
    counted = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return f"fsdp: {' + '.join([*counted, 'the rest'])}; rank 0 holds {own:,} of {total:,} parameters"


def padding_note(model: nn.Module) -> str:
    """A line where cutting leaves more than PADDED of what is gathered and reduced as padding; else empty."""
    held = sent = processes = 0
    for p in model.parameters():
        if is_part(p):
            processes = p.device_mesh.size(p.device_mesh.ndim - 1)  # type: ignore[attr-defined]
            held, sent = held + p.numel(), sent + -(-p.shape[0] // processes) * processes * (p.numel() // p.shape[0])
    if sent <= (1 + PADDED) * held:
        return ""
    return (
        f"fsdp: {sent / held - 1:.0%} more is sent than the weights, as padding: they have few rows for the "
        f"{processes} processes of a copy - trainer.fsdp.replicas=... makes copies of fewer processes (docs/fsdp.md)"
    )
