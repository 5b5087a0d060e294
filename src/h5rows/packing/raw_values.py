"""Values of any HDF5 type as HDF5 has them in memory, NumPy's types or not: read, written, compared, and their
references exchanged for others.

A value is `size` bytes. In it lie numbers and fixed strings; addresses of strings and sequences elsewhere in memory,
which HDF5 allocates on reading; and references, which are addresses in the file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5r, h5s, h5t, h5z

BLOCK_BYTES = 4 << 20
_POINTER = 8
_free = ctypes.CDLL(None).free  # HDF5 takes the memory of strings and sequences by malloc, unless told otherwise
_free.argtypes, _free.restype = [ctypes.c_void_p], None

OBJECT, REGION, STRING, SEQUENCE = "object", "region", "string", "sequence"
Exchange = Callable[[str, np.ndarray], np.ndarray]  # (OBJECT | REGION, (n, bytes) uint8) -> the same shape


class Unknown(Exception):
    """A type of which it is not known where its values hold references."""


@dataclass
class Kind:
    """plain: ranges of bytes. spots: (first byte, what lies there, of a sequence the kind of its elements)."""

    size: int
    plain: list[tuple[int, int]] = field(default_factory=list)
    spots: list[tuple[int, str, Any]] = field(default_factory=list)

    @property
    def refers(self) -> bool:
        return any(what in (OBJECT, REGION) or (inner and inner.refers) for _, what, inner in self.spots)

    def add(self, at: int, part: Kind) -> None:
        for begin, end in part.plain:
            if self.plain and self.plain[-1][1] == at + begin:
                begin = self.plain.pop()[0] - at
            self.plain.append((at + begin, at + end))
        self.spots += [(at + begin, what, inner) for begin, what, inner in part.spots]


def kind_of(tid: Any) -> Kind:
    made, what = Kind(tid.get_size()), tid.get_class()
    if what == h5t.REFERENCE:
        if not (tid.equal(h5t.STD_REF_OBJ) or tid.equal(h5t.STD_REF_DSETREG)):
            raise Unknown("references of the kind that HDF5 1.12 brought")
        made.spots = [(0, OBJECT if tid.equal(h5t.STD_REF_OBJ) else REGION, Kind(tid.get_size()))]
    elif what == h5t.VLEN:
        made.spots = [(0, SEQUENCE, kind_of(tid.get_super()))]
    elif what == h5t.STRING and tid.is_variable_str():
        made.spots = [(0, STRING, None)]
    elif what == h5t.COMPOUND:
        members = sorted((tid.get_member_offset(k), k) for k in range(tid.get_nmembers()))
        for at, k in members:
            made.add(at, kind_of(tid.get_member_type(k)))
    elif what == h5t.ARRAY:
        part = kind_of(tid.get_super())
        if not part.spots and part.plain == [(0, part.size)]:
            made.plain = [(0, made.size)]
        else:
            for k in range(prod(tid.get_array_dims())):
                made.add(k * part.size, part)
    else:
        made.plain = [(0, made.size)]
    return made


def walk(rows: np.ndarray, kind: Kind, exchange: Exchange, see: Callable[[Any], None], free: bool) -> None:
    """Of (n, size) uint8, `see` all that it holds, in an order that depends on the type alone, with references
    exchanged, in place. free: give the memory of strings and sequences back, which HDF5 does as it writes them."""
    for begin, end in kind.plain:
        see(np.ascontiguousarray(rows[:, begin:end]))
    for at, what, inner in kind.spots:
        if what in (OBJECT, REGION):
            rows[:, at : at + inner.size] = exchange(what, np.ascontiguousarray(rows[:, at : at + inner.size]))
            see(np.ascontiguousarray(rows[:, at : at + inner.size]))
            continue
        table = np.ascontiguousarray(rows[:, at : at + (8 + _POINTER if inner else _POINTER)]).view(np.uint64)
        for *count, where in table.tolist():
            if inner:
                see(b"%d," % count[0])
                if count[0]:
                    memory = (ctypes.c_char * (count[0] * inner.size)).from_address(where)
                    below = np.frombuffer(memory, np.uint8).reshape(count[0], inner.size)
                    walk(below, inner, exchange, see, free)
            else:
                see(ctypes.string_at(where) + b"\0" if where else b"none")
            if free and where:
                _free(where)


def is_null(space: Any) -> bool:
    return bool(space.get_simple_extent_type() == h5s.NULL)


def read_attribute(attr: Any) -> np.ndarray | None:
    """-> (*shape,) of raw values; None: it has none."""
    if is_null(attr.get_space()) or not prod(attr.shape):
        return None
    tid = attr.get_type()
    raw = np.zeros(attr.shape, f"V{tid.get_size()}")
    attr.read(raw, tid)
    return raw


def as_rows(raw: np.ndarray) -> np.ndarray:
    return raw.reshape(-1).view(np.uint8).reshape(raw.size, raw.dtype.itemsize)


Box = tuple[tuple[int, ...], tuple[int, ...]]  # corner, shape


def written(dset: Any) -> Iterator[Box]:
    """Where values were written, in blocks of some megabytes or single chunks."""
    shape, create = dset.shape, dset.get_create_plist()
    if is_null(dset.get_space()) or not prod(shape):
        return
    if create.get_layout() == h5d.CHUNKED:
        chunk = create.get_chunk()
        for corner in chunks_of(dset):
            yield corner, tuple(min(c, side - at) for c, side, at in zip(chunk, shape, corner, strict=True))
    elif dset.get_storage_size() or create.get_layout() == h5d.VIRTUAL:
        if not shape:
            yield (), ()
            return
        row = max(1, prod(shape[1:]) * dset.get_type().get_size())
        step = max(1, BLOCK_BYTES // row)
        for begin in range(0, shape[0], step):
            yield (begin, *[0] * (len(shape) - 1)), (min(step, shape[0] - begin), *shape[1:])


def chunks_of(dset: Any) -> list[tuple[int, ...]]:
    """Corners of the chunks that were written."""
    space = dset.get_space()
    most, shape, chunk = space.get_simple_extent_dims(True), dset.shape, dset.get_create_plist().get_chunk()
    growing = [axis for axis, side in enumerate(most) if side == h5s.UNLIMITED]
    found: list[tuple[int, ...]] = []
    if (len(growing) == 1 and growing != [0]) or not hasattr(dset, "chunk_iter"):
        # HDF5 2.0 lists such chunks by the wrong axes
        grid = [range(0, side, c) for side, c in zip(shape, chunk, strict=True)]
        for corner in np.ndindex(*map(len, grid)):
            where = tuple(axis[k] for axis, k in zip(grid, corner, strict=True))
            if len(found) == dset.get_num_chunks():
                break
            if dset.get_chunk_info_by_coord(where).byte_offset is not None:
                found.append(where)
        return found

    def visit(info: Any) -> None:
        found.append(tuple(info.chunk_offset))

    if dset.get_num_chunks():
        dset.chunk_iter(visit)
    return [corner for corner in found if all(at < side for at, side in zip(corner, shape, strict=True))]


SMALL = 4096  # bytes of a dataset, below which a page of its own costs more than it brings


def keeps_layout(dset: Any) -> bool:
    """Chunks of what is small and cannot grow only cost."""
    plan, space = dset.get_create_plist(), dset.get_space()
    if plan.get_layout() == h5d.VIRTUAL or plan.get_external_count():
        return False
    fixed = space.get_simple_extent_dims(True) == space.get_simple_extent_dims()
    size = int(space.get_simple_extent_npoints()) * dset.get_type().get_size()
    stored = dset.get_storage_size() > 0
    return not (plan.get_layout() == h5d.CHUNKED and fixed and stored and size < SMALL and readable(dset))


def readable(dset: Any) -> bool:
    """Whether this HDF5 has its filters."""
    plan = dset.get_create_plist()
    return all(h5z.filter_avail(plan.get_filter(k)[0]) for k in range(plan.get_nfilters()))


def copied_raw(dset: Any, kind: Kind) -> bool:
    """Chunks whose bytes are taken as they lie in the file, whatever filters they went through."""
    return not kind.spots and dset.get_create_plist().get_layout() == h5d.CHUNKED and keeps_layout(dset)


def select(dset: Any, box: Box) -> tuple[Any, Any]:
    """(space in memory, space in the file)."""
    corner, shape = box
    if not shape:
        return h5s.ALL, h5s.ALL
    space = dset.get_space()
    space.select_hyperslab(corner, shape)
    return h5s.create_simple(shape), space  # of as many sides: with others HDF5 crashes on some virtual datasets


def read_box(dset: Any, box: Box) -> np.ndarray:
    """(n,) raw values."""
    tid, (memory, space) = dset.get_type(), select(dset, box)
    raw = np.zeros(prod(box[1]) if box[1] else (), f"V{tid.get_size()}")
    dset.read(memory, space, raw, tid)
    return raw


def write_box(dset: Any, box: Box, raw: np.ndarray) -> None:
    """Gives the memory of its strings and sequences back."""
    memory, space = select(dset, box)
    dset.write(memory, space, raw, dset.get_type())


class Scratch:
    """A file in memory, in which raw references become h5py's, and h5py's raw."""

    def __init__(self) -> None:
        self._file = h5py.File(f"scratch of {id(self)}", "w", driver="core", backing_store=False)

    def close(self) -> None:
        self._file.close()

    def _make(self, what: str, count: int) -> tuple[Any, Any]:
        kind = h5t.STD_REF_OBJ if what == OBJECT else h5t.STD_REF_DSETREG
        return h5d.create(self._file.id, None, kind, h5s.create_simple((count,))), kind

    def references(self, what: str, raw: np.ndarray) -> list[Any]:
        """(n, bytes) uint8 -> h5py's references."""
        dset, kind = self._make(what, len(raw))
        dset.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(raw).view(f"V{raw.shape[1]}").reshape(-1), kind)
        return list(h5py.Dataset(dset)[:])

    def raw(self, what: str, reference: Any) -> bytes:
        dset, kind = self._make(what, 1)
        h5py.Dataset(dset)[0] = reference
        raw = np.zeros(1, f"V{kind.get_size()}")
        dset.read(h5s.ALL, h5s.ALL, raw, kind)
        return raw.tobytes()


def follow(reference: Any, file: h5py.File) -> tuple[Any, Any]:
    """(object, selected region or None); (None, None): it leads to nothing; raises KeyError where it leads astray."""
    try:
        found = h5r.dereference(reference, file.id) if reference else None
        region = h5r.get_region(reference, file.id) if found and isinstance(reference, h5r.RegionReference) else None
    except (OSError, RuntimeError, ValueError) as error:
        raise KeyError(str(error)) from error
    return found, region
