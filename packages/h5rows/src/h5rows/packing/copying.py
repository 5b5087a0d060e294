"""Copy all objects, links, attributes and references of an HDF5 file to another file, and compare the two files.

H5Ocopy of HDF5 copies unchanged objects. It loses references in records, sequences and attributes, and named types that
datasets share; such datasets are copied block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5r, h5s

from h5rows.errors import ConfigError
from h5rows.packing.survey import DATASET, GROUP, TYPE, UNREADABLE, Node, Survey, address, grows, guarded, links, text
from h5rows.packing.values import blocks, chunk_sums, exchanged, in_memory, read_attribute, refers, scattered, spelled

# (path, the old dataset, type in the new file) -> its replacement, not linked yet; None: copy it unchanged
Make = Callable[[str, Any, Any], Any]


def elsewhere(dset: Any) -> bool:
    """Return True if the rows of the dataset are in other datasets or files. Its copy contains the rows itself."""
    plan = dset.get_create_plist()
    return bool(plan.get_external_count()) or plan.get_layout() == h5d.VIRTUAL


def creation(dset: Any) -> Any:
    """Return the creation properties of a dataset, with a contiguous layout and without filters."""
    new = old = dset.get_create_plist()
    if not elsewhere(dset):
        if new.get_nfilters():
            new.remove_filter(0)  # all
    else:  # such a layout cannot be removed
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
    """Return file creation properties: the order of links and attributes, and the size of the user block."""
    old, new = file.id.get_create_plist(), ordered(h5p.FILE_CREATE, h5o.open(file.id, b"/"))
    new.set_userblock(old.get_userblock())
    return new


def ordered(kind: Any, group: Any) -> Any:
    """Return creation properties of this kind with the order of links and attributes of a group."""
    new, old = h5p.create(kind), group.get_create_plist()
    new.set_link_creation_order(old.get_link_creation_order())
    new.set_attr_creation_order(old.get_attr_creation_order())
    return new


class Copier:
    """Copy a file: create all objects below a temporary group, then attributes and references, and the links last."""

    def __init__(self, old: Survey, new: h5py.File, make: Make) -> None:
        self.old, self.new, self.make, self.account = old, new, make, old.account
        self.made: dict[int, Any] = {}  # address in the old file -> reference in the new one
        self.replaced: set[int] = set()  # datasets whose rows the caller writes

    def copy(self) -> None:
        """Copy everything. Objects that cannot be read are left out and counted."""
        nodes = self.old.nodes
        root, holder = address(self.old.open(b"/")), h5g.create(self.new.id, None)
        h5o.link(holder, holder, b"self")  # a link to itself keeps the group until it is unlinked
        self.made[root] = h5r.create(h5o.open(self.new.id, b"/"), b".", h5r.OBJECT)
        for where in sorted(nodes, key=lambda each: nodes[each].what != TYPE):  # types first, which others share
            if where != root:
                with self.named(nodes[where]):
                    made = self.create(where, nodes[where], holder, b"%d" % where)
                    self.made[where] = h5r.create(made, b".", h5r.OBJECT)
        for where in self.made:
            with self.named(nodes[where]):
                self.finish(where, nodes[where])
        for where in self.made:
            if nodes[where].what == GROUP:
                with self.named(nodes[where]):
                    self.link(nodes[where].path, self.opened(where))
        holder.unlink(b"self")

    def named(self, node: Node) -> AbstractContextManager[None]:
        """Return a context that leaves an unreadable object out, by its path."""
        return guarded(self.account, node.what, text(node.path))

    def opened(self, where: int) -> Any:
        """Return the object of the new file for an address of the old file."""
        return h5r.dereference(self.made[where], self.new.id)

    def create(self, where: int, node: Node, holder: Any, name: bytes) -> Any:
        """Create the object under this name in `holder`, without its attributes."""
        item = self.old.open(node.path)
        if node.what == GROUP:
            return h5g.create(holder, name, gcpl=ordered(h5p.GROUP_CREATE, item))
        made = None
        if node.what == DATASET:
            kind = self.type_of(item.get_type())
            made = self.make(text(node.path), item, kind)
            if made is not None:
                self.replaced.add(where)
            elif by_blocks(item):
                made = copy_by_blocks(item, kind, self.new)
        if made is not None:
            h5o.link(made, holder, name)
            return made
        plan = h5p.create(h5p.OBJECT_COPY)
        plan.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)
        h5o.copy(item, b".", holder, name, copypl=plan)
        return h5o.open(holder, name)

    def type_of(self, kind: Any) -> Any:
        """Return the type for the new file: the named type, or an unnamed copy if it was left out."""
        if not kind.committed():
            return kind
        where = address(kind)
        return self.opened(where) if where in self.made else kind.copy()

    def finish(self, where: int, node: Node) -> None:
        """Copy attributes, the comment, and values with references to other objects."""
        old, new, path = self.old.open(node.path), self.opened(where), text(node.path)
        for name in self.old.attributes(node.path):
            with guarded(self.account, "attributes", f"{path}: {text(name)}"):
                attr = h5a.open(old, name)
                kind = attr.get_type()
                values, memory = read_attribute(attr), kind
                made = h5a.create(new, name, self.type_of(kind), attr.get_space())
                if values is None:
                    continue
                if refers(kind):
                    values, memory = self.exchange(values, f"{path}: {text(name)}"), in_memory(made.get_type())[1]
                else:  # as raw bytes: with NumPy's types, strings of full length would lose their last character
                    values = np.zeros(attr.shape, f"V{kind.get_size()}")
                    attr.read(values, kind)
                made.write(values, memory)
        if comment := h5o.get_comment(old, b"."):
            h5o.set_comment(new, comment, obj_name=b".")
        if node.what == DATASET and where not in self.replaced and refers(old.get_type()):
            for memory, space, values in blocks(old):
                new.write(memory, space, self.exchange(values, path), in_memory(new.get_type())[1])

    def exchange(self, values: Any, path: str) -> Any:
        """Return the values with their references replaced by those of the new file. path: for the account."""

        def swap(reference: Any) -> Any:
            if not reference:
                return reference
            try:
                return self.reference(reference)
            except KeyError as why:
                self.account.leave("references", f"in {path}", str(why.args[0]))
                return type(reference)()

        return exchanged(values, swap)

    def reference(self, old: Any) -> Any:
        """Return the reference in the new file. Raise KeyError with the reason if its target is not there."""
        target, region = follow(old, self.old.file)
        if target is None:
            raise KeyError("has no target in the source")
        where = address(target)
        if where not in self.made:
            path = self.old.path_of(target)
            raise KeyError(
                f"leads to {text(path)}, which was left out" if path else "leads to an object without a name"
            )
        if region is None:
            return self.made[where]
        if not isinstance(self.opened(where), h5d.DatasetID):
            raise KeyError(f"leads to rows of {text(self.old.nodes[where].path)}, which have another layout now")
        return h5r.create(self.opened(where), b".", h5r.DATASET_REGION, region)

    def link(self, path: bytes, new: Any) -> None:
        """Create the links of a group in the new file."""
        old = self.old.open(path)
        for name, kind, cset in links(old):
            shown = f"{text(path).rstrip('/')}/{text(name)}"
            with guarded(self.account, "links", shown):
                plan = h5p.create(h5p.LINK_CREATE)
                plan.set_char_encoding(cset)
                if kind == h5l.TYPE_SOFT:
                    new.links.create_soft(name, old.links.get_val(name), lcpl=plan)
                elif kind == h5l.TYPE_EXTERNAL:
                    new.links.create_external(name, *old.links.get_val(name), lcpl=plan)
                elif kind != h5l.TYPE_HARD:
                    self.account.leave("links", shown, f"a user-defined link, of class {kind}")
                elif (where := target_of(old, name)) not in self.made:
                    why = "cannot be opened" if where is None else "was left out"
                    self.account.leave("links", shown, f"its target {why}")
                else:
                    h5o.link(self.opened(where), new, name, lcpl=plan)


def target_of(group: Any, name: bytes) -> int | None:
    """Return the address of a link's target; None if it cannot be opened."""
    try:
        return address(h5o.open(group, name))
    except UNREADABLE:
        return None


def follow(reference: Any, file: h5py.File) -> tuple[Any, Any]:
    """Return (object, selected region or None); (None, None) if the reference has no target."""
    try:
        target = h5r.dereference(reference, file.id) if reference else None
        region = h5r.get_region(reference, file.id) if target and isinstance(reference, h5r.RegionReference) else None
    except UNREADABLE:
        return None, None
    return target, region


def by_blocks(dset: Any) -> bool:
    """Return True if H5Ocopy would lose a part of the dataset."""
    kind = dset.get_type()
    filled = dset.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
    return bool(kind.committed()) or refers(kind) or elsewhere(dset) or (filled and scattered(kind))


def copy_by_blocks(old: Any, kind: Any, new: h5py.File) -> Any:
    """Return a new dataset without a name. Its rows are copied, unless they contain references."""
    in_memory(kind)  # raise TypeError here, before a dataset without rows is created
    space, apart = old.get_space(), elsewhere(old)
    if apart and grows(old):
        space = h5s.create_simple(old.shape)
    made = h5d.create(new.id, None, kind, space, creation(old) if apart else old.get_create_plist())
    if not refers(kind):
        for memory, part, values in blocks(old):
            made.write(memory, part, values, in_memory(made.get_type())[1])
    return made


def compare(old: Survey, new: Survey, written: Collection[bytes]) -> None:
    """Raise ConfigError if an object that is in both files differs. Objects that the copy lacks are counted elsewhere.
    written: paths of datasets whose rows were compared before."""
    for names in new.account.left.values():
        raise ConfigError(f"{new.file.filename}: {names[0]}: cannot be read back")
    for path in [node.path for node in old.nodes.values() if node.path in new.paths]:
        was, now = (told(a, b, path, path not in written) for a, b in ((old, new), (new, old)))
        for one, other in zip_longest(was, now):
            if one != other:
                what = f"{new.file.filename}: {text(path)}: {(one or other)[0]}"
                raise ConfigError(f"{what}: read back with other bytes than written")


def told(survey: Survey, other: Survey, path: bytes, whole: bool) -> Iterator[tuple[str, Any]]:
    """Yield (part, value) for each part of an object that can be compared. whole: False means only its attributes.
    Attributes and links that are in only one of the files are left out."""
    item = survey.open(path)
    names = [name for name in survey.attributes(path) if name in set(other.attributes(path))]
    yield "attributes", names
    for name in names:
        attr = h5a.open(item, name)
        yield from told_values(survey, other, f"attribute {text(name)}", attr, [read_attribute(attr)])
    if not whole:
        return
    yield "kind of object", type(item)
    if isinstance(item, h5g.GroupID):
        both = {name for name, _, _ in links(other.open(path))}
        for name, kind, _ in links(item):
            target: Any = None
            if kind == h5l.TYPE_HARD:
                target = survey.nodes.get(target_of(item, name) or 0)
            elif kind in (h5l.TYPE_SOFT, h5l.TYPE_EXTERNAL):
                target = item.links.get_val(name)
            if name in both:
                yield "links", (name, kind, target)
    elif isinstance(item, h5d.DatasetID):
        chunked = item.get_create_plist().get_layout() == h5d.CHUNKED
        as_chunks = chunked and not scattered(item.get_type()) and not by_blocks(item)
        values = () if as_chunks else (values for _, _, values in blocks(item))
        yield from told_values(survey, other, "values", item, values)
        if as_chunks:
            yield "chunks", chunk_sums(h5py.Dataset(item))
    else:
        yield "type", item


def told_values(
    survey: Survey, other: Survey, what: str, item: Any, values: Iterable[Any]
) -> Iterator[tuple[str, Any]]:
    """Yield type, name of the type, shape and values of a dataset or an attribute."""
    kind = item.get_type()
    yield f"type of {what}", kind
    yield f"name of the type of {what}", survey.path_of(kind) if kind.committed() else None
    yield f"shape of {what}", (item.get_space().get_simple_extent_type(), item.shape)

    def name_of(reference: Any) -> Any:
        """Return (path, region) of a reference, which are equal in both files; None if the copy lacks the target."""
        if not reference:
            return None
        survey.counts["references"] += 1
        target, region = follow(reference, survey.file)
        path = survey.path_of(target) if target else None
        if path not in other.paths or (region is not None and path in (survey.flat or other.flat)):
            return None
        return path, selected(region)

    for part in values:
        for piece in spelled(part, name_of):
            yield what, piece


def selected(space: Any) -> Any:
    """Return the selection of a region in one standard form; None means the whole object."""
    if space is None:
        return None
    what, none = space.get_select_type(), not space.get_select_npoints()
    if none or what not in (h5s.SEL_POINTS, h5s.SEL_HYPERSLABS):
        return space.shape, none, what == h5s.SEL_ALL
    points = what == h5s.SEL_POINTS
    listed = space.get_select_elem_pointlist() if points else space.get_select_hyper_blocklist()
    return space.shape, points, sorted(listed.tolist())
