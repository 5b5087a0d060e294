"""Operations that write to given tensors, whatever they are reached by: a view, `.data`, a list of `torch._foreach_*`.

Seen on the host, by the memory that an operation's arguments lie in, so the device is not asked.
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
    """In this block of this thread the names of tensors that are written to are added to `written`, each once; also of
    those that are given other memory (`p.data = ...`)."""
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
    """The number of the memory that a tensor, or this rank's shard of it, lies in."""
    place: int = local_parts([value])[0].untyped_storage()._cdata
    return place
