"""Whether two HDF5 files hold the same: objects, links, attributes, values, what references point to; by h5py alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ADDED = "repacked"  # the attribute of the root that a copy has more


class Walk:
    """differences: a line for each. skipped: what h5py cannot read in either file."""

    def __init__(self, old: h5py.File, new: h5py.File) -> None:
        self.old, self.new = old, new
        self.pairs: dict[Any, Any] = {}
        self.left: deque[tuple[Any, Any, str]] = deque()
        self.differences: list[str] = []
        self.skipped: list[str] = []
        self.pair(old, new, "/")
        while self.left:
            self.item(*self.left.popleft())

    def same(self, where: str, what: str, old: Any, new: Any) -> bool:
        equal = bool(old == new)
        if not equal:
            self.differences.append(f"{where}: {what}: {old!r} became {new!r}"[:300])
        return equal

    def pair(self, old: Any, new: Any, where: str) -> None:
        first, second = (h5py.h5o.get_info(item.id).addr for item in (old, new))
        if first not in self.pairs:
            self.pairs[first] = second
            self.left.append((old, new, where))
        self.same(where, "which object it is", self.pairs[first], second)

    def item(self, old: Any, new: Any, where: str) -> None:
        kinds = ["Group" if isinstance(item, h5py.Group) else type(item).__name__ for item in (old, new)]
        if not self.same(where, "kind of object", *kinds):
            return
        plans = [item.id.get_create_plist() for item in (old, new)]
        if not isinstance(old, h5py.Datatype):
            self.same(where, "order of attributes", *(plan.get_attr_creation_order() for plan in plans))
        self.attributes(old, new, where)
        if isinstance(old, h5py.Group):
            self.same(where, "order of links", *(group_plan(item).get_link_creation_order() for item in (old, new)))
            self.links(old, new, where)
        elif isinstance(old, h5py.Dataset):
            self.dataset(old, new, where, *plans)
        else:
            self.same(where, "type", True, old.id.equal(new.id))

    def attributes(self, old: Any, new: Any, where: str) -> None:
        names = [[name for name in item.attrs if where != "/" or name != ADDED] for item in (old, new)]
        self.same(where, "attributes", *names)
        for name in set(names[0]) & set(names[1]):
            here = f"{where}@{name}"
            ids = [item.attrs.get_id(name) for item in (old, new)]
            self.types(here, *(each.get_type() for each in ids))
            self.same(here, "space", *((each.get_space().get_simple_extent_type(), each.shape) for each in ids))
            self.values(here, partial(old.attrs.__getitem__, name), partial(new.attrs.__getitem__, name))

    def types(self, where: str, old: Any, new: Any) -> None:
        self.same(where, "type", (True, old.committed()), (old.equal(new), new.committed()))
        if old.committed() and new.committed():
            self.pair(h5py.Datatype(old), h5py.Datatype(new), f"type of {where}")

    def links(self, old: h5py.Group, new: h5py.Group, where: str) -> None:
        names = [list(item) for item in (old, new)]
        self.same(where, "names", *names)
        for name in names[0]:
            if name not in names[1]:
                continue
            here = f"{where.rstrip('/')}/{name}"
            links = [item.get(name, getlink=True) for item in (old, new)]
            said = [(type(link).__name__, vars(link)) for link in links]
            if self.same(here, "link", *said) and isinstance(links[0], h5py.HardLink):
                try:
                    below = old[name]
                except (KeyError, OSError, RuntimeError, TypeError) as error:
                    self.skipped.append(f"{here}: {error}")
                    continue
                self.pair(below, new[name], here)

    def dataset(self, old: h5py.Dataset, new: h5py.Dataset, where: str, before: Any, after: Any) -> None:
        numbers = readable(old) and readable(new) and old.dtype.kind in "iufc" and not old.dtype.metadata
        if numbers and not old.id.get_type().committed():  # another byte order is the same numbers
            self.same(where, "type", *(item.dtype.newbyteorder("=") for item in (old, new)))
        else:
            self.types(where, old.id.get_type(), new.id.get_type())
        self.same(where, "shape", (old.shape, old.maxshape), (new.shape, new.maxshape))
        self.same(where, "fill value", before.fill_value_defined(), after.fill_value_defined())
        self.same(where, "fill time", before.get_fill_time(), after.get_fill_time())
        if readable(old) and readable(new) and old.dtype.kind in "biufSV" and not old.dtype.hasobject:
            self.values(f"{where} (fill value)", lambda: np.asarray(old.fillvalue), lambda: np.asarray(new.fillvalue))
        if old.shape and old.shape != old.maxshape:
            self.same(where, "chunks", bool(old.chunks), bool(new.chunks))
        unwritten = not old.id.get_storage_size()
        if unwritten:
            self.same(where, "unwritten", 0, new.id.get_storage_size())
        if not (unwritten and old.size and old.nbytes > 1 << 24):
            self.values(where, lambda: old[()], lambda: new[()])

    def values(self, where: str, old: Any, new: Any) -> None:
        try:
            was = old()
        except (OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
            self.skipped.append(f"{where}: {error}")
            return
        self.value(where, was, new())

    def value(self, where: str, old: Any, new: Any) -> None:
        if isinstance(old, h5py.h5r.Reference):
            self.reference(where, old, new)
        elif isinstance(old, (np.ndarray, np.void)) and old.dtype.names:
            for name in old.dtype.names:
                self.value(f"{where}.{name}", old[name], new[name])
        elif isinstance(old, np.ndarray) and old.dtype.kind == "O":
            if self.same(where, "shape", old.shape, np.shape(new)):
                for k, (one, other) in enumerate(zip(old.reshape(-1), new.reshape(-1), strict=True)):
                    self.value(f"{where}[{k}]", one, other)
        elif isinstance(old, (np.ndarray, np.generic)):
            was, now = np.asarray(old), np.asarray(new)
            if self.same(where, "shape", was.shape, now.shape):
                was, now = was.astype(was.dtype.newbyteorder("=")), now.astype(now.dtype.newbyteorder("="))
                self.same(where, "bytes", was.tobytes(), now.tobytes())
        else:
            self.same(where, "value", repr(old), repr(new))

    def reference(self, where: str, old: Any, new: Any) -> None:
        if not self.same(where, "whether it points to something", bool(old), bool(new)) or not old:
            return
        try:
            target = self.old[old]
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            self.skipped.append(f"{where}: {error}")
            return
        self.pair(target, self.new[new], f"*({where})")
        if isinstance(old, h5py.h5r.RegionReference):
            regions = [h5py.h5r.get_region(each, f.id) for each, f in ((old, self.old), (new, self.new))]
            self.same(where, "region", *(sorted(points(each)) for each in regions))


def points(space: Any) -> Iterator[tuple[int, ...]]:
    """Corners of the region's blocks, or its points."""
    if not space.get_select_npoints():
        return
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_POINTS:
        yield from map(tuple, space.get_select_elem_pointlist().tolist())
    elif kind == h5py.h5s.SEL_HYPERSLABS:
        yield from (tuple(map(tuple, block)) for block in space.get_select_hyper_blocklist().tolist())
    else:
        yield (kind,)


def readable(dset: h5py.Dataset) -> bool:
    try:
        return dset.dtype is not None
    except (TypeError, ValueError):
        return False


def group_plan(group: h5py.Group) -> Any:
    return h5py.h5o.open(group.id, b".").get_create_plist()


def compare(old: Path, new: Path) -> Walk:
    with h5py.File(old) as before, h5py.File(new) as after:
        walk = Walk(before, after)
        sizes = [file.userblock_size for file in (before, after)]
    blocks = [path.read_bytes()[:size] for path, size in zip((old, new), sizes, strict=True)]
    walk.same("file", "user block", *blocks)
    return walk
