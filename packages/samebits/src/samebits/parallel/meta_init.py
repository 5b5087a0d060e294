"""A model without memory, for a rank that will be given its shards of rank 0's weights (fsdp.py).

Its __init__ runs on the device `meta`, where tensors have shapes and no values. What else it makes of values would be
wrong without a word, so it raises:

    scale = weight.std().item(); weight.numpy()                   (torch does, as there is no value)
    table = torch.zeros(4, device="cpu"); table.add_(weight[0])   torch 2.13 leaves the table as it was
    noise = torch.rand(4, device="cpu")                           not the numbers that follow on drawn weights
    self.mask = torch.ones(4, 4)                                  no parameter or buffer: it would never get values
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
    """The model's __init__ needs values: it is to run on the CPU."""


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """build() on `meta`. Raises NeedsValues, or what build raises there."""
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
    """Names of attributes that are tensors or, in lists and dicts, hold some."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            own = name not in ("_parameters", "_buffers", "_modules")
            if own and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
                yield f"{prefix}.{name}".lstrip(".")


class _Watch(TorchDispatchMode):
    """Sees each operation of a build."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Tensor]] = []  # tensors on meta

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        from_meta = any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs)))
        draws = torch.Tag.nondeterministic_seeded in function.tags
        if (from_meta or draws) and not all(tensor.is_meta for tensor in tensors):
            raise NeedsValues(f"{function} makes values on the CPU {'of weights' if from_meta else 'by chance'}")
        self._made += map(weakref.ref, tensors)
        return result

    def alive(self) -> Iterator[Tensor]:
        found = (made() for made in self._made)
        return (tensor for tensor in found if tensor is not None and tensor.is_meta)
