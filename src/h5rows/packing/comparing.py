"""Whether a copy holds what its source does: both files read from disk, object by object along names and references."""

from __future__ import annotations

from collections import deque
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5l, h5o, h5s

from h5rows.errors import ConfigError
from h5rows.packing.copying import copied_raw, readable
from h5rows.packing.raw_values import (
    Kind,
    Scratch,
    checksum,
    chunks_of,
    follow,
    kind_of,
    read_attribute,
    read_box,
    written,
)
from h5rows.packing.tree import DATASET, GROUP, NOTE, TYPE, Tree, address, attribute_names, links, text, what_is

Reference = tuple[str, bytes]


def selection(space: Any) -> Any:
    """What of a dataset is selected, however it was written down."""
    what, none = space.get_select_type(), not space.get_select_npoints()
    if none or what not in (h5s.SEL_POINTS, h5s.SEL_HYPERSLABS):
        return space.shape, none, what == h5s.SEL_ALL
    points = what == h5s.SEL_POINTS
    listed = space.get_select_elem_pointlist() if points else space.get_select_hyper_blocklist()
    return space.shape, points, sorted(listed.tolist())


class Comparison:
    """replaced: paths of the datasets whose rows were compared as they were written. What the copy lacks altogether is
    not looked for here, but counted."""

    def __init__(self, tree: Tree, old: h5py.File, new: h5py.File, replaced: set[str]) -> None:
        self.tree, self.old, self.new, self.replaced = tree, old, new, replaced
        self.pairs: dict[int, int] = {}  # address in the old file -> in the new one
        self.left: deque[tuple[Any, Any, str]] = deque()
        self.seen: set[tuple[Reference, Reference]] = set()
        self.scratch = Scratch()

    def run(self) -> None:
        try:
            self.pair(h5o.open(self.old.id, b"/"), h5o.open(self.new.id, b"/"))
            while self.left:
                self.object(*self.left.popleft())
        finally:
            self.scratch.close()

    def same(self, where: str, what: str, equal: Any) -> None:
        if not equal:
            raise ConfigError(f"{self.new.filename}: {where}: {what}: what was read back is not what was written")

    def pair(self, old: Any, new: Any) -> None:
        first = address(old)
        path = self.tree.nodes[first].path
        if first not in self.pairs:
            self.pairs[first] = address(new)
            self.left.append((old, new, path))
        self.same(path, "another object", self.pairs[first] == address(new))

    def object(self, old: Any, new: Any, where: str) -> None:
        flat = isinstance(old, h5d.DatasetID) and not isinstance(new, h5d.DatasetID) and where in self.replaced
        self.same(where, "another kind of object", flat or what_is(old) == what_is(new))
        names, there = attribute_names(old), attribute_names(new)
        both = [name for name in names if name in there]
        self.same(where, "order of attributes", both == [name for name in there if name in names])
        for name in both:
            if where != "/" or name != NOTE:
                self.attribute(h5a.open(old, name), h5a.open(new, name), f"{where}: attribute {text(name)}")
        kind = what_is(old)
        if kind == GROUP:
            self.group(old, new, where)
        elif kind == TYPE:
            self.same(where, "type", old.equal(new))
        elif kind == DATASET and not flat:
            self.dataset(old, new, where)

    def group(self, old: Any, new: Any, where: str) -> None:
        there = dict(links(new))
        for name, info in links(old):
            if name not in there:
                continue
            path = f"{where.rstrip('/')}/{text(name)}"
            self.same(path, "another kind of link", info.type == there[name].type)
            if info.type == h5l.TYPE_HARD:
                self.pair(h5o.open(old, name), h5o.open(new, name))
            else:
                self.same(path, "link", old.links.get_val(name) == new.links.get_val(name))
        order = [name for name, _ in links(old) if name in there]
        self.same(where, "order of names", order == [name for name in there if name in set(order)])

    def types(self, old: Any, new: Any, where: str) -> None:
        self.same(where, "type", old.equal(new) and old.committed() == new.committed())
        if old.committed():
            self.pair(old, new)

    def attribute(self, old: Any, new: Any, where: str) -> None:
        self.types(old.get_type(), new.get_type(), where)
        spaces = [(a.get_space().get_simple_extent_type(), a.shape) for a in (old, new)]
        self.same(where, "shape", spaces[0] == spaces[1])
        self.values(read_attribute(old), read_attribute(new), kind_of(old.get_type()), where)

    def dataset(self, old: Any, new: Any, where: str) -> None:
        replaced = where in self.replaced
        if not replaced or old.get_type().committed():
            self.types(old.get_type(), new.get_type(), where)
        spaces = [(d.get_space().get_simple_extent_type(), d.shape) for d in (old, new)]
        self.same(where, "shape", spaces[0] == spaces[1])
        if replaced:
            return
        kind = kind_of(old.get_type())
        if copied_raw(old, kind):
            corners = chunks_of(old)
            self.same(where, "chunks", sorted(corners) == sorted(chunks_of(new)))
            for corner in corners:
                self.same(where, "a chunk", old.read_direct_chunk(corner) == new.read_direct_chunk(corner))
        elif readable(old):
            for box in written(old):
                self.values(read_box(old, box), read_box(new, box), kind, where)

    def values(self, old: Any, new: Any, kind: Kind, where: str) -> None:
        found: tuple[list[Reference], list[Reference]] = ([], [])

        def noting(into: list[Reference]) -> Any:
            def note(what: str, raw: np.ndarray) -> np.ndarray:
                into.extend((what, row.tobytes()) for row in raw)
                return np.zeros_like(raw)

            return note

        crcs = [checksum(raw, kind, noting(into)) for raw, into in zip((old, new), found, strict=True)]
        self.same(where, "values", crcs[0] == crcs[1] and len(found[0]) == len(found[1]))
        for both in dict.fromkeys(zip(*found, strict=True)):
            if both not in self.seen:
                self.seen.add(both)
                self.reference(*both, where)

    def reference(self, old: Reference, new: Reference, where: str) -> None:
        if not any(new[1]):
            return  # was left out, if the other is not null too; counted
        target, reference = self.tree.targets[old]
        self.same(where, "a reference", target is not None)
        (made,) = self.scratch.references(new[0], np.frombuffer(new[1], np.uint8)[None])
        (item, region), (copied, selected) = follow(reference, self.old), follow(made, self.new)
        self.same(where, "a reference", copied is not None)
        self.pair(item, copied)
        if region is not None:
            self.same(where, "a region", selection(region) == selection(selected))
