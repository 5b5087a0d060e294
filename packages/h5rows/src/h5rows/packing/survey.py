"""List the objects of an HDF5 file, each once under its first name, and count them by kind."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import h5py
from h5py import h5, h5a, h5d, h5g, h5l, h5o, h5p

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line, machine_fault

GROUP, DATASET, TYPE = "groups", "datasets", "named types"
UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)
NOTE = b"repacked"  # root attribute that only a copy has


@contextmanager
def guarded(account: Account, kind: str, name: str) -> Iterator[None]:
    """Leave an object that cannot be read out, by name. Raise errors of the machine, such as an I/O error."""
    try:
        yield
    except ConfigError:
        raise
    except UNREADABLE as error:
        if machine_fault(error):
            raise
        account.leave(kind, name, first_line(error))


def address(item: Any) -> int:
    """Return the address of an object in its file, which identifies it."""
    return int(h5o.get_info(item).addr)


def text(name: bytes) -> str:
    """Return a name as text; invalid UTF-8 is kept by surrogates."""
    return name.decode("utf-8", "surrogateescape")


def _index(tracked: int) -> int:
    return h5.INDEX_CRT_ORDER if tracked & h5p.CRT_ORDER_TRACKED else h5.INDEX_NAME


def attribute_names(item: Any) -> list[bytes]:
    """Return the names of attributes in creation order, if the object stores it, otherwise sorted."""
    names: list[bytes] = []
    order = getattr(item.get_create_plist(), "get_attr_creation_order", int)
    h5a.iterate(item, names.append, index_type=_index(order()))
    return names


def links(group: Any) -> list[tuple[bytes, int, int]]:
    """Return (name, type, character set of the name) of links in creation order, if the group stores it, or sorted."""
    found: list[tuple[bytes, int, int]] = []

    def visit(name: bytes, info: Any) -> None:
        found.append((name, info.type, info.cset))

    order = group.get_create_plist().get_link_creation_order()
    group.links.iterate(visit, info=True, idx_type=_index(order))
    return found


def grows(dset: Any) -> bool:
    """Return True if the dataset can be resized."""
    space = dset.get_space()
    return bool(space.get_simple_extent_dims(True) != space.get_simple_extent_dims())


class Node(NamedTuple):
    """An object: its first path and its kind."""

    path: bytes
    what: str


class Survey:
    """The objects of a file. nodes: by address, breadth first. flat: path of a flattened dataset -> its rows."""

    def __init__(self, file: h5py.File, account: Account, flat: Mapping[bytes, int] | None = None) -> None:
        self.file, self.account, self.flat = file, account, flat or {}
        self.paths: set[bytes] = set()
        self.nodes: dict[int, Node] = {}
        self.counts: Counter[str] = Counter()
        self._groups: deque[bytes] = deque()
        self._see(h5o.open(file.id, b"/"), b"/")
        while self._groups:
            path = self._groups.popleft()
            with guarded(account, GROUP, text(path)):
                self._look_into(path)

    def open(self, path: bytes) -> Any:
        """Open the object at a path."""
        return h5o.open(self.file.id, path)

    def attributes(self, path: bytes) -> list[bytes]:
        """Return the names of attributes in order, without `repacked`."""
        return [name for name in attribute_names(self.open(path)) if path != b"/" or name != NOTE]

    def path_of(self, item: Any) -> bytes | None:
        """Return the first path of an object; None if it has only references to it."""
        node = self.nodes.get(address(item))
        return node and node.path

    def _look_into(self, path: bytes) -> None:
        group = self.open(path)
        for name, kind, _ in links(group):
            self.counts["links"] += 1
            if kind == h5l.TYPE_HARD:
                below = path.rstrip(b"/") + b"/" + name
                with guarded(self.account, "objects that cannot be opened", text(below)):
                    self._see(h5o.open(group, name), below)

    def _see(self, item: Any, path: bytes) -> None:
        if (where := address(item)) in self.nodes:
            return
        what = GROUP if isinstance(item, h5g.GroupID) else DATASET if isinstance(item, h5d.DatasetID) else TYPE
        if path in self.flat:
            what = DATASET
            self.counts["rows"] += self.flat[path]
        elif what == DATASET:
            self.counts["rows"] += item.shape[0] if item.shape else 0
            self.counts["fill values"] += item.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
            self.counts["extents that can grow"] += grows(item)
        elif what == GROUP:
            self._groups.append(path)
        self.nodes[where] = Node(path, what)
        self.paths.add(path)
        self.counts[what] += 1
        self.counts["attributes"] += len(self.attributes(path))
