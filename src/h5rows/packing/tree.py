"""What an HDF5 file holds: each object once, whether names lead to it or only references, and how many of what."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import h5py
import numpy as np
from h5py import h5, h5a, h5d, h5g, h5l, h5o, h5p, h5r, h5s

from h5rows.errors import ConfigError, first_line, machine_fault
from h5rows.packing.account import Account
from h5rows.packing.raw_values import (
    SMALL,
    Kind,
    Scratch,
    Unknown,
    as_rows,
    chunks_of,
    copied_raw,
    follow,
    kind_of,
    read_attribute,
    read_box,
    readable,
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

    flat: path -> rows, of groups of values and offsets that stand for one dataset.
    said: where told to, what is there, to be compared with the same of a copy: (path, of what) -> {name: value}. Values
    are checksums, references the paths that they lead to. skip: paths of datasets whose rows are not read."""

    def __init__(
        self,
        file: h5py.File,
        account: Account,
        flat: Mapping[str, int] | None = None,
        tell: bool = False,
        skip: Collection[str] = (),
    ) -> None:
        self.file, self.account, self.flat, self.tell, self.skip = file, account, flat or {}, tell, skip
        self.said: dict[tuple[str, str], dict[Any, Any]] = {}
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
        kind = node.what if rows is None else DATASET
        self.counts[kind] += 1
        self._say(node.path, "object", {"kind": kind})
        with guarded(self.account, node.what, node.path):
            for name in attribute_names(item):
                if node.path != "/" or name != NOTE:
                    self.counts["attributes"] += 1
                    self._attribute(item, name, node)
            if rows is not None:
                self.counts["rows"] += rows
            elif node.what == DATASET:
                self._dataset(item, node)
            elif node.what == TYPE:
                self._say(node.path, "object", {"type": item})

    def _say(self, path: str, what: str, values: Mapping[Any, Any]) -> None:
        if self.tell:
            self.said.setdefault((path, what), {}).update(values)

    def _attribute(self, item: Any, name: bytes, node: Node) -> None:
        where = f"{node.path}: attribute {text(name)}"
        try:
            attr = h5a.open(item, name)
            tid, space = attr.get_type(), attr.get_space()
            self._type(tid, where)
            self._say(node.path, "attributes", {text(name): (space.get_simple_extent_type(), attr.shape)})
            if (kind := kind_of(tid)).refers or self.tell:
                raw = read_attribute(attr)
                self._values([] if raw is None else [raw], kind, where)
        except UNREADABLE as error:
            if machine_fault(error):
                raise
            if self.tell:  # else said where it is copied
                self.account.leave("attributes", where, first_line(error))

    def _dataset(self, dset: Any, node: Node) -> None:
        self.counts["rows"] += dset.shape[0] if dset.shape else 0
        self.counts["fill values"] += dset.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
        self.counts["extents that can grow"] += grows(dset)
        skipped = node.path in self.skip
        self._type(dset.get_type(), node.path, skipped)
        if not skipped:
            self._say(node.path, "object", {"shape": (dset.get_space().get_simple_extent_type(), dset.shape)})
        try:
            kind = kind_of(dset.get_type())
        except Unknown:  # said where it is copied
            return
        if kind.refers or (self.tell and not skipped and readable(dset) and not copied_raw(dset, kind)):
            whole = (
                prod(dset.shape or ()) * kind.size < SMALL and dset.get_storage_size()
            )  # it may have lost its chunks
            boxes = [((0,) * len(dset.shape), dset.shape)] if whole and prod(dset.shape) else written(dset)
            self._values((read_box(dset, box) for box in boxes), kind, node.path)
        elif self.tell and not skipped and copied_raw(dset, kind):
            chunks = {corner: crc32(dset.read_direct_chunk(corner)[1]) for corner in chunks_of(dset)}
            self._say(node.path, "values", {"chunks": chunks})

    def _type(self, tid: Any, where: str, anew: bool = False) -> None:
        """anew: in the copy its byte order may be another."""
        if not anew:
            self._say(where, "type", {"type": tid})
        if tid.committed():
            self._say(where, "type", {"name": self.nodes[self._see(tid, f"(type of {where})", False)].path})

    def _link(self, group: Any, name: bytes, info: Any, node: Node) -> None:
        self.counts["links"] += 1
        target: Any = None
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
            target = self.nodes[self._see(found, path, node.named)].path
        elif self.tell and info.type in (h5l.TYPE_SOFT, h5l.TYPE_EXTERNAL):
            target = group.links.get_val(name)
        self._say(node.path, "links", {text(name): (info.type, target)})

    def _values(self, pieces: Iterable[np.ndarray], kind: Kind, where: str) -> None:
        """Follow the references in raw values; `said` is a checksum without them, and where each of them leads."""
        crc, count, places = 0, 0, {}

        def see(data: Any) -> None:
            nonlocal crc
            crc = crc32(data, crc)

        def follow_them(what: str, raw: np.ndarray) -> np.ndarray:
            nonlocal count
            keys = [row.tobytes() for row in raw]
            self.counts["references"] += sum(any(key) for key in keys)
            new = {
                key: count + k
                for k, key in reversed([*enumerate(keys)])
                if any(key) and (what, key) not in self.targets
            }
            if new:
                values = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
                for key, reference in zip(new, self._scratch.references(what, values), strict=True):
                    self.targets[what, key] = (self._follow(reference, f"{where}, reference {new[key]}"), reference)
            for k, key in enumerate(keys) if self.tell else ():
                address, reference = self.targets.get((what, key), (None, None))
                if address is not None:
                    places[count + k] = (self.nodes[address].path, selected(reference, self.file))
            count += len(keys)
            return np.zeros_like(raw)

        for raw in pieces:
            walk(as_rows(raw), kind, follow_them, see, free=True)
        self._say(where, "values", {"crc": crc, "count": count})
        self._say(where, "references", places)

    def _follow(self, reference: Any, path: str) -> int | None:
        try:
            found, _ = follow(reference, self.file)
            return None if found is None else self._see(found, f"({path})", False)
        except (KeyError, TypeError):
            return None


def selected(reference: Any, file: h5py.File) -> Any:
    """What of a dataset a reference selects, however it is written down; None: it leads to all of an object."""
    _, space = follow(reference, file)
    if space is None:
        return None
    what, none = space.get_select_type(), not space.get_select_npoints()
    if none or what not in (h5s.SEL_POINTS, h5s.SEL_HYPERSLABS):
        return space.shape, none, what == h5s.SEL_ALL
    points = what == h5s.SEL_POINTS
    listed = space.get_select_elem_pointlist() if points else space.get_select_hyper_blocklist()
    return space.shape, points, sorted(listed.tolist())


def compare(old: Tree, new: Tree) -> None:
    """What both files hold is the same, in the same order. What the copy lacks is not looked for here, but counted."""
    for names in new.account.left.values():
        raise ConfigError(f"{new.file.filename}: {names[0]}: what was written cannot be read back")
    for (path, what), values in old.said.items():
        copied = new.said.get((path, what), {})
        both = [name for name in values if name in copied]
        differs = next((name for name in both if values[name] != copied[name]), None)
        if differs is not None or both != [name for name in copied if name in values]:
            where = f"{path}: {what}{'' if differs is None else f', {differs}'}"
            raise ConfigError(f"{new.file.filename}: {where}: what was read back is not what was written")
