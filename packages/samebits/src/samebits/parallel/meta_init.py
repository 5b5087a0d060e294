"""Build a model without memory, for a rank that later receives its shards of rank 0's weights (fsdp.py).

Its __init__ runs on the device `meta`, where tensors have shapes and no values. Code that depends on values would give
wrong results without an error, so these cases raise NeedsValues:

    scale = weight.std().item(); weight.numpy()                   torch raises: there is no value
    table = torch.zeros(4, device="cpu"); table.add_(weight[0])   torch 2.13 does not change the table
    noise = torch.rand(4, device="cpu")                           the random state differs: no weights were drawn
    self.mask = torch.ones(4, 4)                                  not a parameter or buffer: it never gets values
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class NeedsValues(Exception):
    """Raised if the model's __init__ needs values and must run on the CPU."""


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Return build(), run on `meta`. Raise NeedsValues, or the error that build raises there."""
    watch = _Watch()
    with torch.device("meta"), watch:
        model = build()
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if loose := next(_attributes(model), None):
        raise NeedsValues(f"{loose} is a tensor that is neither parameter nor buffer")
    if any(id(tensor) not in registered for tensor in watch.alive()):
        raise NeedsValues(f"{type(model).__name__} keeps a tensor that is neither parameter nor buffer")
    return model


def _attributes(model: nn.Module) -> Iterator[str]:
    """Yield the names of attributes that are tensors, or lists and dicts that contain tensors."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            own = name not in ("_parameters", "_buffers", "_modules")
            if own and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
                yield f"{prefix}.{name}".lstrip(".")


class _Watch(TorchDispatchMode):
    """Observe each operation of a build. Raise NeedsValues if one needs values or draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Tensor]] = []  # tensors on meta

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        from_meta = any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs)))
        draws = torch.Tag.nondeterministic_seeded in function.tags
        if (from_meta or draws) and not all(tensor.is_meta for tensor in tensors):
            raise NeedsValues(
                f"{function} computes values on the CPU from {'weights' if from_meta else 'random numbers'}"
            )
        self._made += map(weakref.ref, tensors)
        return result

    def alive(self) -> Iterator[Tensor]:
        """Yield the tensors on meta that still exist."""
        found = (made() for made in self._made)
        return (tensor for tensor in found if tensor is not None and tensor.is_meta)
