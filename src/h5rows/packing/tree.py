"""What an HDF5 file holds: each object once, whether names lead to it or only references, and how many of what."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5, h5a, h5d, h5g, h5l, h5o, h5p, h5r

from h5rows.errors import ConfigError, first_line, machine_fault
from h5rows.packing.account import Account
from h5rows.packing.raw_values import (
    Exchange,
    Scratch,
    Unknown,
    as_rows,
    follow,
    kind_of,
    read_attribute,
    read_box,
    walk,
    written,
)

GROUP, DATASET, TYPE = "groups", "datasets", "named types"
UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, Unknown)
NOTE = b"repacked"  # the attribute that a copy has more than its source


@contextmanager
def guarded(account: Account, kind: str, name: str) -> Iterator[None]:
    """What cannot be read is left out by name; a fault of the machine's stops all."""
    try:
        yield
    except ConfigError:
        raise
    except UNREADABLE as error:
        if machine_fault(error):
            raise
        account.leave(kind, name, first_line(error))


def address(item: Any) -> int:
    return int(h5o.get_info(item).addr)


def what_is(item: Any) -> str:
    return GROUP if isinstance(item, h5g.GroupID) else DATASET if isinstance(item, h5d.DatasetID) else TYPE


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _index(tracked: int) -> int:
    return h5.INDEX_CRT_ORDER if tracked & h5p.CRT_ORDER_TRACKED else h5.INDEX_NAME


def attribute_names(item: Any) -> list[bytes]:
    """In the order of their creation, where the object knows it."""
    names: list[bytes] = []
    order = getattr(item.get_create_plist(), "get_attr_creation_order", int)
    h5a.iterate(item, names.append, index_type=_index(order()))
    return names


class Link(NamedTuple):
    type: int
    cset: int  # character set of its name


def links(group: Any) -> list[tuple[bytes, Link]]:
    """By name, in the order of their creation, where the group knows it."""
    found: list[tuple[bytes, Link]] = []

    def visit(name: bytes, info: Any) -> None:
        found.append((name, Link(info.type, info.cset)))  # h5py gives the same object each time

    order = group.get_create_plist().get_link_creation_order()
    group.links.iterate(visit, info=True, idx_type=_index(order))
    return found


def grows(dset: Any) -> bool:
    space = dset.get_space()
    return bool(space.get_simple_extent_dims(True) != space.get_simple_extent_dims())


@dataclass(frozen=True)
class Node:
    path: str  # for an object that only references reach, how
    named: bool
    reference: Any
    what: str


class Tree:
    """nodes: by address. targets: where each reference leads, by its bytes: an address, or None for astray.

    flat: path -> rows, of groups of values and offsets that stand for one dataset."""

    def __init__(self, file: h5py.File, account: Account, flat: Mapping[str, int] | None = None) -> None:
        self.file, self.account, self.flat = file, account, flat or {}
        self.nodes: dict[int, Node] = {}
        self.targets: dict[tuple[str, bytes], tuple[int | None, Any]] = {}
        self.counts: Counter[str] = Counter()
        self._groups: deque[int] = deque()
        self._unread: deque[int] = deque()
        self._scratch = Scratch()
        try:
            self._see(h5o.open(file.id, b"/"), "/", True)
            while self._unread:
                while self._groups:  # first: an object that has a name shall be known by it
                    self._names(self._groups.popleft())
                self._examine(self._unread.popleft())
        finally:
            self._scratch.close()

    def open(self, address: int, file: h5py.File) -> Any:
        """file: the same one, perhaps opened anew."""
        return h5r.dereference(self.nodes[address].reference, file.id)

    def _see(self, item: Any, path: str, named: bool) -> int:
        where = address(item)
        if where not in self.nodes:
            self.nodes[where] = Node(path, named, h5r.create(item, b".", h5r.OBJECT), what_is(item))
            self._unread.append(where)
            if isinstance(item, h5g.GroupID):
                self._groups.append(where)
        return where

    def _names(self, where: int) -> None:
        node, item = self.nodes[where], self.open(where, self.file)
        if node.path not in self.flat:
            with guarded(self.account, GROUP, node.path):
                for name, info in links(item):
                    self._link(item, name, info, node)

    def _examine(self, where: int) -> None:
        node, item = self.nodes[where], self.open(where, self.file)
        rows = self.flat.get(node.path)
        self.counts[node.what if rows is None else DATASET] += 1
        with guarded(self.account, node.what, node.path):
            for name in attribute_names(item):
                if node.path != "/" or name != NOTE:
                    self.counts["attributes"] += 1
                    self._attribute(item, name, node)
            if rows is not None:
                self.counts["rows"] += rows
            elif node.what == DATASET:
                self._dataset(item, node)

    def _attribute(self, item: Any, name: bytes, node: Node) -> None:
        try:
            attr = h5a.open(item, name)
            self._type(attr.get_type(), node)
            if (kind := kind_of(attr.get_type())).refers and (raw := read_attribute(attr)) is not None:
                walk(as_rows(raw), kind, self._note(node), _ignore, free=True)
        except UNREADABLE as error:  # said where it is copied
            if machine_fault(error):
                raise

    def _dataset(self, dset: Any, node: Node) -> None:
        self.counts["rows"] += dset.shape[0] if dset.shape else 0
        self.counts["fill values"] += dset.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
        self.counts["extents that can grow"] += grows(dset)
        self._type(dset.get_type(), node)
        try:
            kind = kind_of(dset.get_type())
        except Unknown:  # said where it is copied
            return
        if kind.refers:
            for box in written(dset):
                walk(as_rows(read_box(dset, box)), kind, self._note(node), _ignore, free=True)

    def _type(self, tid: Any, node: Node) -> None:
        if tid.committed():
            self._see(tid, f"(type of {node.path})", False)

    def _link(self, group: Any, name: bytes, info: Any, node: Node) -> None:
        self.counts["links"] += 1
        if info.type == h5l.TYPE_HARD:
            path = f"{node.path.rstrip('/')}/{text(name)}"
            try:
                found = h5o.open(group, name)
            except UNREADABLE as error:
                if machine_fault(error):
                    raise
                self.counts["objects that cannot be opened"] += 1
                self.account.leave("objects that cannot be opened", path, first_line(error))
                return
            self._see(found, path, node.named)

    def _note(self, node: Node) -> Exchange:
        def note(what: str, raw: np.ndarray) -> np.ndarray:
            keys = [row.tobytes() for row in raw]
            self.counts["references"] += sum(any(key) for key in keys)
            new = [key for key in dict.fromkeys(keys) if any(key) and (what, key) not in self.targets]
            if new:
                values = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
                for key, reference in zip(new, self._scratch.references(what, values), strict=True):
                    self.targets[what, key] = (self._follow(reference, node), reference)
            return raw

        return note

    def _follow(self, reference: Any, node: Node) -> int | None:
        try:
            found, _ = follow(reference, self.file)
            return None if found is None else self._see(found, f"(what {node.path} refers to)", False)
        except (KeyError, TypeError):
            return None


def _ignore(data: Any) -> None:
    """Only the references are wanted."""
