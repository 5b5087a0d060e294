"""Sharded tensors (DTensors): this rank's parts, norms and products over the ranks, optimizers that step on parts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import RunFailed, one_line


@contextmanager
def on_shards(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context of optimizer.step. On sharded weights fused kernels get the local shards without DTensor's dispatch (1 to
    5 ms of host time a step with 75 parameters), and an optimizer that cannot handle DTensors raises RunFailed."""
    if not is_part(optimizer.param_groups[0]["params"][0]):
        yield
        return
    try:
        with _fused_on_shards() if optimizer.defaults.get("fused") else nullcontext():
            yield
    except Exception as cause:
        if not _steps_on_plain(optimizer):
            raise
        wrong = f"optim: {type(optimizer).__name__} cannot update sharded weights"
        raise RunFailed(f"{wrong} ({one_line(cause)}); use another one, or trainer=ddp") from cause


def _steps_on_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a first step of the same optimizer succeeds on plain tensors in place of the DTensors, copies of this
    rank's shards. Then DTensors are why it has failed, whatever torch's error about them is called and says."""
    plain = object.__new__(type(optimizer))
    vars(plain).update(vars(optimizer), state=defaultdict(dict))
    plain.param_groups = [{**group, "params": [_plain(p) for p in group["params"]]} for group in optimizer.param_groups]
    try:
        plain.step()
    except Exception:
        return False
    return True


def _plain(parameter: Tensor) -> nn.Parameter:
    copied = nn.Parameter(local_parts([parameter])[0].detach().clone())
    copied.grad = None if parameter.grad is None else local_parts([parameter.grad])[0].detach().clone()
    return copied


@functools.cache
def _fused_on_shards() -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    names = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    fused = {getattr(torch.ops.aten, name) for name in names}

    class FusedOnShards(TorchDispatchMode):
        """These kernels work element by element, in place: a shard is updated as its part of the whole would be."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.overloadpacket in fused:
                args = [local_parts(one) if isinstance(one, (list, tuple)) else one for one in args]
            return function(*args, **kwargs or {})

    return FusedOnShards()


def is_part(value: Tensor | None) -> bool:
    """Whether `value` is a DTensor, a sharded tensor. (Not isinstance: a plain run need not import DTensor.)"""
    return hasattr(value, "full_tensor")


def local_parts(tensors: Iterable[Any]) -> list[Any]:
    """This rank's shards of DTensors, which share their memory; other values as they are.

    Not by `to_local`, which takes 8 us for a parameter (torch 2.13), and a step has each several times."""
    return [getattr(value, "_local_tensor", value) for value in tensors]


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of all elements of plain tensors, or of DTensors (all ranks call this)."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(local_parts(tensors))))
    return _over_shards(norm.double().square(), tensors[0]).sqrt().to(norm.dtype) if is_part(tensors[0]) else norm


def global_dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The sum of all products of elements of plain tensors, or of DTensors (all ranks call this)."""
    products = torch._foreach_mul(local_parts(a), local_parts(b))
    dot = torch.stack([product.sum() for product in products]).sum()
    return _over_shards(dot.double(), a[0]).to(dot.dtype) if is_part(a[0]) else dot


def _over_shards(value: Tensor, part: Any) -> Tensor:
    """The sum over the shards of a value, (), in float64, that each rank has of its own. part: one of the DTensors.

    A single sum over all ranks, which gives all of them the same bits. In it each of the copies of fsdp.replicas
    counts once; a sum for each copy could differ in its last bit, and the copies would drift apart."""
    import torch.distributed as dist

    dist.all_reduce(value)
    mesh, shards = part.device_mesh, 1
    for dim, placement in enumerate(part.placements):
        shards *= mesh.size(dim) if placement.is_shard() else 1
    return value * (shards / mesh.size())


def is_sharded(model: nn.Module) -> bool:
    return any(is_part(p) for p in model.parameters())
