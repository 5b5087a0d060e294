"""Observe operations that write to given tensors, including writes through a view, `.data` or a list
(`torch._foreach_*`).

Writes are detected on the host by the storage of an operation's arguments, without synchronizing with the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.shards import local_parts


@contextmanager
def observe_writes(named: Iterable[tuple[str, Tensor]], written: list[str]) -> Iterator[None]:
    """Append to `written` the names of tensors that this thread writes to within this block, each name once. Tensors
    that get another storage (`p.data = ...`) count, too."""
    values = dict(named)
    places = {name: _place(value) for name, value in values.items()}
    with _Writes({place: name for name, place in places.items()}, written):
        yield
    written += [name for name, value in values.items() if _place(value) != places[name] and name not in written]


class _Writes(TorchDispatchMode):
    def __init__(self, names: dict[int, str], written: list[str]) -> None:
        super().__init__()
        self.names, self.written = names, written

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for at, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                targets = args[at] if at < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
                for target in tree_leaves(targets):
                    name = self.names.get(_place(target)) if isinstance(target, Tensor) else None
                    if name is not None and name not in self.written:
                        self.written.append(name)
        return function(*args, **kwargs)


def _place(value: Tensor) -> int:
    """Return an id of the storage of a tensor, or of this rank's shard of it."""
    place: int = local_parts([value])[0].untyped_storage()._cdata
    return place
