"""Sharded tensors (DTensors): this rank's parts, norms and dot products over all ranks, optimizer steps on parts."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import RunFailed, one_line


def on_shards(optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
    """Run optimizer.step in this context. It has no effect if the weights are not sharded.

    Fused kernels get the local shards without DTensor's dispatch, which saves 1 to 5 ms of host time per step with 75
    parameters. Raise RunFailed if the optimizer does not support DTensors.
    """
    return _on_shards(optimizer) if is_dtensor(optimizer.param_groups[0]["params"][0]) else nullcontext()


@contextmanager
def _on_shards(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    try:
        with _fused_on_shards() if optimizer.defaults.get("fused") else nullcontext():
            yield
    except Exception as cause:
        if not _steps_on_plain(optimizer):
            raise
        wrong = f"optim: {type(optimizer).__name__} cannot update sharded weights"
        raise RunFailed(f"{wrong} ({one_line(cause)}); use another optimizer, or trainer=ddp") from cause


def _steps_on_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a first step of the same optimizer succeeds on plain copies of this rank's shards.

    Then DTensors are the cause of the failure, whatever the type and text of torch's error.
    """
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
        """Pass shards to fused kernels. These work element by element, in place, so this equals an update of the
        complete tensor."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.overloadpacket in fused:
                args = [local_parts(one) if isinstance(one, (list, tuple)) else one for one in args]
            return function(*args, **kwargs or {})

    return FusedOnShards()


def is_dtensor(value: Tensor | None) -> bool:
    """Return True if `value` is a DTensor, a sharded tensor. No isinstance, to avoid importing DTensor."""
    return hasattr(value, "full_tensor")


def empty_like(like: Any, dtype: torch.dtype | None = None, device: str | None = None) -> Any:
    """Return an uninitialized DTensor with the sharding of `like`. dtype, device: of its local part; None: those of
    `like`.

    torch.empty_like would not do: torch caches the sharding of results by the mesh, and the mesh of an earlier process
    group of this process, in which it may have had another rank, is equal."""
    new: Any = torch.empty_like(like, dtype=dtype, device=device, requires_grad=False)
    new._spec = copy.copy(new._spec)
    new._spec.mesh = like.device_mesh
    return new


def local_parts(tensors: Iterable[Any]) -> list[Any]:
    """Return this rank's shards of DTensors, which share their memory; other values are returned unchanged.

    `to_local` takes 8 us per parameter (torch 2.13), and a step needs each parameter several times, so it is not used.
    """
    return [getattr(value, "_local_tensor", value) for value in tensors]


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all elements of plain tensors, or of DTensors (then all ranks must call it)."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(local_parts(tensors))))
    return _over_shards(norm.double().square(), tensors[0]).sqrt().to(norm.dtype) if is_dtensor(tensors[0]) else norm


def global_dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the dot product of two lists of plain tensors, or of DTensors (then all ranks must call it)."""
    products = torch._foreach_mul(local_parts(a), local_parts(b))
    dot = torch.stack([product.sum() for product in products]).sum()
    return _over_shards(dot.double(), a[0]).to(dot.dtype) if is_dtensor(a[0]) else dot


def _over_shards(value: Tensor, part: Any) -> Tensor:
    """Return the sum of a value over all shards. value: 0-d float64, of this rank. part: one of the DTensors.

    It is one sum over all ranks, so all ranks get the same bits; it is divided by the number of copies (fsdp.replicas).
    One sum per copy could differ in its last bit, and the copies would diverge."""
    import torch.distributed as dist

    dist.all_reduce(value)
    mesh, shards = part.device_mesh, 1
    for dim, placement in enumerate(part.placements):
        shards *= mesh.size(dim) if placement.is_shard() else 1
    return value * (shards / mesh.size())


def is_sharded(model: nn.Module) -> bool:
    """Return True if a model has sharded parameters."""
    return any(is_dtensor(p) for p in model.parameters())
