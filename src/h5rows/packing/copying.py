"""One HDF5 file's objects, links, attributes and references in another: structure first, then what refers to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5r

from h5rows.packing.account import Account
from h5rows.packing.raw_values import (
    OBJECT,
    REGION,
    Kind,
    Scratch,
    Unknown,
    as_rows,
    chunks_of,
    copied_raw,
    follow,
    keeps_layout,
    kind_of,
    read_attribute,
    read_box,
    readable,
    walk,
    write_box,
    written,
)
from h5rows.packing.tree import DATASET, GROUP, NOTE, TYPE, Tree, address, attribute_names, guarded, links, text

# (path, the old dataset, type in the new file) -> what is made for it there, unlinked; None: it is copied as it is
Make = Callable[[str, Any, Any], Any]


def creation(dset: Any) -> Any:
    """The properties with which a dataset was made, but for its layout and filters."""
    old = dset.get_create_plist()
    if not old.get_external_count() and old.get_layout() != h5d.VIRTUAL:
        new = old
        if new.get_nfilters():
            new.remove_filter(0)  # all
    else:  # neither can be taken off
        new = h5p.create(h5p.DATASET_CREATE)
        if old.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED and dset.dtype.kind != "O":
            value = np.zeros((), dset.dtype)
            old.get_fill_value(value)
            new.set_fill_value(value)
        new.set_fill_time(old.get_fill_time())
        new.set_attr_creation_order(old.get_attr_creation_order())
    new.set_layout(h5d.CONTIGUOUS)
    return new


def file_properties(file: h5py.File) -> Any:
    """Those of the root group, and the room before the file's own bytes."""
    old, root = file.id.get_create_plist(), h5o.open(file.id, b"/").get_create_plist()
    new = h5p.create(h5p.FILE_CREATE)
    new.set_userblock(old.get_userblock())
    new.set_link_creation_order(root.get_link_creation_order())
    new.set_attr_creation_order(root.get_attr_creation_order())
    return new


class Copier:
    """holder: a group that no name leads to, in which objects wait for their links. What has none stays there."""

    def __init__(self, tree: Tree, old: h5py.File, new: h5py.File, make: Make) -> None:
        self.tree, self.old, self.new, self.make = tree, old, new, make
        self.account: Account = tree.account
        self.made: dict[int, Any] = {}  # old address -> reference in the new file
        self.replaced: set[int] = set()  # objects whose rows the caller writes
        self.exchanged: dict[tuple[str, bytes], bytes] = {}
        self.left: dict[tuple[str, bytes], str] = {}
        self.scratch = Scratch()
        self.holder = h5g.create(new.id, None)
        h5o.link(self.holder, self.holder, b"self")

    def copy(self) -> None:
        try:
            nodes = self.tree.nodes.items()
            for where, node in nodes:
                if node.what == TYPE:
                    with guarded(self.account, TYPE, node.path):
                        self.commit(where)
            root = address(h5o.open(self.old.id, b"/"))
            self.keep(root, h5o.open(self.new.id, b"/"))
            self.fill_groups(root)
            for where, node in list(nodes):
                if where not in self.made and not node.named and self.place(where) and node.what == GROUP:
                    self.fill_groups(where)
            for where, node in nodes:
                if where in self.made:
                    with guarded(self.account, node.what, node.path):
                        self.finish(where)
            self.tidy()
        finally:
            self.scratch.close()

    def keep(self, where: int, item: Any) -> None:
        self.made[where] = h5r.create(item, b".", h5r.OBJECT)

    def opened(self, where: int) -> Any:
        return h5r.dereference(self.made[where], self.new.id)

    def commit(self, where: int) -> None:
        kind = self.tree.open(where, self.old).copy()
        kind.commit(self.holder, b"%d" % where)
        self.keep(where, kind)

    def place(self, where: int) -> bool:
        """Make an object in the holder; False: it cannot be."""
        node = self.tree.nodes[where]
        with guarded(self.account, node.what, node.path):
            item = self.create(where)
            if h5o.get_info(item).rc == 0:
                h5o.link(item, self.holder, b"%d" % where)
            self.keep(where, item)
        return where in self.made

    def create(self, where: int) -> Any:
        node, item = self.tree.nodes[where], self.tree.open(where, self.old)
        if node.what == GROUP:
            plan = h5p.create(h5p.GROUP_CREATE)
            plan.set_link_creation_order(item.get_create_plist().get_link_creation_order())
            plan.set_attr_creation_order(item.get_create_plist().get_attr_creation_order())
            return h5g.create(self.new.id, None, gcpl=plan)
        kind = self.type_of(item.get_type())
        if (made := self.make(node.path if node.named else "", item, kind)) is not None:
            self.replaced.add(where)
            return made
        return copy_dataset(item, kind, self.new, self.holder, b"%d" % where)

    def type_of(self, kind: Any) -> Any:
        if not kind.committed():
            return kind
        if (where := address(kind)) not in self.made:
            raise Unknown("its named type could not be copied")
        return self.opened(where)

    def fill_groups(self, first: int) -> None:
        left = deque([first])
        while left:
            where = left.popleft()
            node = self.tree.nodes[where]
            old, new = self.tree.open(where, self.old), self.opened(where)
            with guarded(self.account, GROUP, node.path):
                for name, info in links(old):
                    path = f"{node.path.rstrip('/')}/{text(name)}"
                    with guarded(self.account, "links", path):
                        if (below := self.link(old, new, name, info, path)) is not None:
                            left.append(below)

    def link(self, old: Any, new: Any, name: bytes, info: Any, path: str) -> int | None:
        """-> the address of a group that is to be filled."""
        plan = h5p.create(h5p.LINK_CREATE)
        plan.set_char_encoding(info.cset)
        if info.type == h5l.TYPE_SOFT:
            new.links.create_soft(name, old.links.get_val(name), lcpl=plan)
        elif info.type == h5l.TYPE_EXTERNAL:
            new.links.create_external(name, *old.links.get_val(name), lcpl=plan)
        elif info.type != h5l.TYPE_HARD:
            self.account.leave("links", path, f"a user-defined link, of class {info.type}")
        else:
            try:
                where = address(h5o.open(old, name))
            except (KeyError, OSError, RuntimeError):
                self.account.leave("links", path, "leads to what cannot be opened")
                return None
            fresh = where not in self.made
            if fresh and not self.place(where):
                self.account.leave("links", path, "leads to what was left out")
                return None
            h5o.link(self.opened(where), new, name, lcpl=plan)
            return where if fresh and self.tree.nodes[where].what == GROUP else None
        return None

    def finish(self, where: int) -> None:
        """Attributes, comment, and values that refer to other objects."""
        node, old, new = self.tree.nodes[where], self.tree.open(where, self.old), self.opened(where)
        for name in attribute_names(old):
            if node.path == "/" and name == NOTE:
                continue
            with guarded(self.account, "attributes", f"{node.path}: {text(name)}"):
                self.attribute(old, new, name, f"{node.path}: {text(name)}")
        if comment := h5o.get_comment(old, b"."):
            h5o.set_comment(new, comment, obj_name=b".")
        if node.what == DATASET and where not in self.replaced and (kind := kind_of(old.get_type())).refers:
            for box in written(old):
                raw = read_box(old, box)
                self.exchange(raw, kind, node.path)
                write_box(new, box, raw)

    def attribute(self, old: Any, new: Any, name: bytes, path: str) -> None:
        attr = h5a.open(old, name)
        kind, raw = kind_of(attr.get_type()), read_attribute(attr)
        made = h5a.create(new, name, self.type_of(attr.get_type()), attr.get_space())
        if raw is not None:
            self.exchange(raw, kind, path)
            made.write(raw, made.get_type())

    def exchange(self, raw: np.ndarray, kind: Kind, path: str) -> None:
        def swap(what: str, values: np.ndarray) -> np.ndarray:
            out = values.copy()
            for k, row in enumerate(values):
                if any(key := row.tobytes()):
                    if (what, key) not in self.exchanged:
                        self.exchanged[what, key] = self.new_reference(what, key)
                    out[k] = np.frombuffer(self.exchanged[what, key], np.uint8)
                    if why := self.left.get((what, key)):
                        self.account.leave("references", f"in {path}", why)
            return out

        if kind.refers:
            walk(as_rows(raw), kind, swap, lambda data: None, free=False)

    def new_reference(self, what: str, key: bytes) -> bytes:
        """Its bytes; those of the null reference, where there is nothing to point to."""
        where, reference = self.tree.targets[what, key]
        if where is None:
            self.left[what, key] = "leads nowhere in the source"
        elif where not in self.made:
            self.left[what, key] = f"leads to {self.tree.nodes[where].path}, which was left out"
        elif what == OBJECT:
            return self.scratch.raw(OBJECT, self.made[where])
        elif where in self.replaced and not isinstance(self.opened(where), h5d.DatasetID):
            self.left[what, key] = f"leads to rows of {self.tree.nodes[where].path}, which lie elsewhere now"
        else:
            _, region = follow(reference, self.old)
            return self.scratch.raw(REGION, h5r.create(self.opened(where), b".", h5r.DATASET_REGION, region))
        return bytes(len(key))

    def tidy(self) -> None:
        """The holder goes, unless it is all that holds an object."""
        names = [name for name, _ in links(self.holder) if name != b"self"]
        for name in names:
            if h5o.get_info(self.holder, name).rc > 1:
                self.holder.unlink(name)
        if not [name for name, _ in links(self.holder) if name != b"self"]:
            self.holder.unlink(b"self")


def copy_dataset(dset: Any, tid: Any, new: h5py.File, holder: Any, name: bytes) -> Any:
    """With its values, but for those that refer to other objects."""
    kind = kind_of(dset.get_type())
    if copied_raw(dset, kind) and not readable(dset):
        if tid.committed():
            raise Unknown("a named type, and a filter that this HDF5 lacks")
        plan = h5p.create(h5p.OBJECT_COPY)
        plan.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)
        h5o.copy(dset, b".", holder, name, copypl=plan)
        return h5o.open(holder, name)
    plan = dset.get_create_plist() if keeps_layout(dset) else creation(dset)
    made = h5d.create(new.id, None, tid, dset.get_space(), plan)
    if copied_raw(dset, kind):
        for corner in chunks_of(dset):
            mask, data = dset.read_direct_chunk(corner)
            made.write_direct_chunk(corner, data, mask)
    elif not kind.refers:
        for box in written(dset):
            write_box(made, box, read_box(dset, box))
    return made
