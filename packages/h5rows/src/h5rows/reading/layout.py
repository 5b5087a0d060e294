"""Find the position of a dataset's bytes in its file, which decides how it is read. No torch, reads no values.

contiguous, or raw chunks of whole rows        -> mapped   gathered from a memory mapping, at the speed of memcpy
the same, of a remote file without a copy      -> ranges   gathered from its blocks on this machine
chunks with filters that filters.py supports   -> chunks   read by offset, decoded in threads
anything else                                  -> h5py     exact, slower
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from h5rows.reading import filters
from h5rows.reading.opening import is_remote
from h5rows.reading.stored import Identity, Stored, cached_property, stored

_TABLE = 1 << 20  # chunks that are listed even if few of them are written
_MISPLACED = "chunks that HDF5 lists in wrong places"


@dataclass(eq=False)
class Layout:
    """The extents of one dataset of N rows. Row chunk c, tile t of it: `size[c, t]` bytes at `offset[c, t]` of `path`.

    A contiguous dataset is one chunk of N rows. A chunk that was never written has size 0 and contains `fill`.
    """

    path: str  # the file that contains the dataset; not the opened file if a link leads to another one
    identity: Identity  # of that file
    name: str
    shape: tuple[int, ...]  # (N, *sample)
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]  # (rows, *tile)
    offset: np.ndarray  # (row chunks, tiles) int64
    size: np.ndarray  # (row chunks, tiles) int64
    mask: np.ndarray  # (row chunks, tiles) uint32; bit i: filter i was not applied to this chunk
    pipeline: filters.Pipeline
    fill: np.ndarray | None

    @cached_property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @cached_property
    def chunk_bytes(self) -> int:
        """Return the bytes of one decoded chunk."""
        return math.prod(self.chunk) * self.dtype.itemsize


def plan(dset: h5py.Dataset) -> tuple[str, str, Layout | None]:
    """Return how to read a dataset's rows (mapped, chunks or h5py), the reason, and the layout; None for h5py."""
    try:
        return _plan(stored(dset))
    except (OSError, RuntimeError, ValueError, OverflowError) as error:  # h5py's
        return "h5py", f"HDF5 does not return its position: {error}", None


def _plan(dset: Stored) -> tuple[str, str, Layout | None]:
    reason = _obstacle(dset)
    if reason is not None:
        return "h5py", reason, None
    if dset.chunks is None:
        offset, size = dset.id.get_offset(), math.prod(dset.shape) * dset.dtype.itemsize
        # if it was never written, get_offset is None, or the last byte of the user block if there is one
        if offset is None or dset.id.get_storage_size() != size:
            return "h5py", "stored inside the file's metadata (compact), or never written", None
        if not dset.file.userblock_size <= offset <= dset.file.identity[2] - size:
            return "h5py", "an address outside the file", None
        return "mapped", "contiguous", _layout(dset, dset.shape, (), offset, size)
    layout = _chunk_table(dset.id, dset.id.get_space(), _layout(dset, dset.chunks, dset.pipeline))
    if isinstance(layout, str):
        return "h5py", layout, None
    rows = f"chunks of {layout.chunk[0]} row{'s' * (layout.chunk[0] > 1)}"
    if layout.offset.shape[1] > 1:
        rows += f", {layout.offset.shape[1]} tiles to a row"
    unwritten = int((layout.size == 0).sum())
    layout.fill = _fill(dset) if unwritten else None
    if unwritten and not _fills(dset):
        return "h5py", f"{rows}, {unwritten} of them never written and without a fill value", None
    if not layout.pipeline and not unwritten and layout.offset.shape[1] == 1 and layout.chunk[1:] == layout.shape[1:]:
        return "mapped", f"raw {rows}", layout
    names = "+".join(filters.NAMES[number] for number, _ in layout.pipeline) or "no filter"
    return "chunks", f"{rows}, {names}" + (f", {unwritten} never written" if unwritten else ""), layout


def extents(dset: h5py.Dataset) -> list[tuple[int, int]]:
    """Return (begin, end) of the bytes of a dataset's values in its file, as far as HDF5 stores them by offset."""
    if dset.is_virtual or dset.external or not dset.id.get_storage_size():
        return []
    if dset.chunks is None:
        offset = dset.id.get_offset()
        return [] if offset is None else [(offset, offset + dset.id.get_storage_size())]
    found: list[tuple[int, int]] = []
    dset.id.chunk_iter(lambda info: found.append((info.byte_offset, info.byte_offset + info.size)))
    return found


def _obstacle(dset: Stored) -> str | None:
    """Return the reason why the file's bytes cannot be used directly; None if they can."""
    if dset.dtype.kind not in "biufcS" or dset.dtype.subdtype:
        return f"type {dset.dtype}" if dset.dtype.kind != "O" else "variable length"
    if not dset.dtype.isnative:
        return "byte order differs from this machine's"
    try:
        same = dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True))
    except TypeError:  # the names of an enum are partly UTF-8, which h5py cannot sort
        same = False
    if not same:
        return "stored type differs from the type that h5py returns"
    if dset.is_virtual:
        return "virtual"
    if dset.external:
        return "stored in other files"
    if dset.shape is None or math.prod(dset.shape) == 0:
        return "empty"
    file = dset.file
    if file.driver not in ("sec2", "stdio") and not is_remote(file.filename):
        return f"file driver {file.driver}"
    if dset.chunks is not None:
        if not hasattr(dset.id, "chunk_iter"):
            return "chunks, which this version of HDF5 cannot list"
        if file.userblock_size and h5py.h5.get_libversion() < (1, 14, 4):
            return "chunks after a user block: this version of HDF5 returns wrong addresses"
        return filters.obstacle(dset.pipeline, math.prod(dset.chunks) * dset.dtype.itemsize)
    return None


def _fills(dset: Stored) -> bool:
    create, h5d = dset._dcpl, h5py.h5d
    defined = create.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
    return bool(defined and create.get_fill_time() != h5d.FILL_TIME_NEVER)


def _chunk_table(dset: h5py.h5d.DatasetID, space: h5py.h5s.SpaceID, of: Layout) -> Layout | str:
    """Return a layout with the positions of all chunks; or the reason if HDF5's list of chunks is unreliable or too
    long. space: of the dataset. of: its layout without positions."""
    grid = [-(-n // c) for n, c in zip(of.shape, of.chunk, strict=True)]
    count = dset.get_num_chunks()
    if math.prod(grid) > max(_TABLE, 4 * count):
        return f"{math.prod(grid)} chunks, of which {count} are written"
    where, stored = [], []

    def visit(info: Any) -> None:
        where.append(info.chunk_offset)
        stored.append((info.byte_offset, info.size, info.filter_mask))

    dset.chunk_iter(visit)
    table = np.zeros((3, math.prod(grid)), dtype=np.int64)
    if where:
        corner, extent = np.asarray(where, dtype=np.uint64), np.asarray(stored, dtype=np.uint64)
        index, rest = np.divmod(corner, np.asarray(of.chunk, np.uint64))
        if rest.any() or (index >= np.asarray(grid, np.uint64)).any() or len(where) != count:
            return _MISPLACED
        table[:, np.ravel_multi_index(tuple(index.astype(np.int64).T), grid)] = extent.astype(np.int64).T
        if (reason := _doubt(space, of, corner, extent)) is not None:
            return reason
        if np.count_nonzero(table[1]) != count:  # two chunks are in one place
            return _MISPLACED
    offset, size, mask = table.reshape(3, grid[0], -1)
    return replace(of, offset=offset, size=size, mask=mask.astype(np.uint32))


def _doubt(space: h5py.h5s.SpaceID, of: Layout, corner: np.ndarray, extent: np.ndarray) -> str | None:
    """Return the reason why a list of chunks may be wrong; None if it is right.

    corner: (n, axes) uint64; extent: (n, 3) uint64 address, size, filter mask.
    """
    growing = [axis for axis, most in enumerate(space.get_simple_extent_dims(True)) if most == h5py.h5s.UNLIMITED]
    if len(growing) == 1 and growing != [0]:  # HDF5 2.0 lists the chunks of such newer files by the wrong axes
        return _MISPLACED
    (address, size, mask), end = extent.T, of.identity[2]
    if (size == 0).any() or (address > end).any() or (size > end - address).any():
        return "chunks without bytes, or with an address outside the file"
    whole = size == of.chunk_bytes
    if not of.pipeline:
        return None if whole.all() else "chunks of an unexpected size"
    # with H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS, which h5py cannot query, chunks at the edge may be stored raw
    raw = corner[whole & (mask == 0)]
    if len(raw) and (raw + np.asarray(of.chunk, np.uint64) > np.asarray(of.shape, np.uint64)).any():
        return "chunks at the edge that may be stored without filters"
    return None


def of_another_file(
    first: Layout, chunked: bool, dset: h5py.h5d.DatasetID, path: str, identity: Identity
) -> Layout | None:
    """Return the layout of a dataset with the type and the creation properties of the first one; None if it differs in
    more than its number of rows and its positions, or if HDF5 has to read it. path, identity: of its file."""
    space = dset.get_space()
    shape = space.get_simple_extent_dims()
    if len(shape) != len(first.shape) or shape[1:] != first.shape[1:] or not shape[0]:
        return None
    if chunked:
        layout = _chunk_table(dset, space, replace(first, path=path, identity=identity, shape=shape))
        return None if isinstance(layout, str) or not layout.size.all() else layout
    offset, size = dset.get_offset(), shape[0] * first.row_bytes
    if offset is None or dset.get_storage_size() != size or not 0 <= offset <= identity[2] - size:
        return None
    at, held = np.array([[offset]], np.int64), np.array([[size]], np.int64)
    return replace(first, path=path, identity=identity, shape=shape, chunk=shape, offset=at, size=held)


def _layout(dset: Stored, chunk: Any, pipeline: filters.Pipeline = (), offset: int = 0, size: int = 0) -> Layout:
    """Return the layout of a dataset in one piece, or of chunks without their positions."""
    file, at, held = dset.file, np.array([[offset]], np.int64), np.array([[size]], np.int64)
    path = file.filename if is_remote(file.filename) else os.path.abspath(file.filename)
    shape, mask = tuple(dset.shape), np.zeros((1, 1), np.uint32)
    return Layout(path, file.identity, dset.name, shape, dset.dtype, tuple(chunk), at, held, mask, pipeline, None)


def _fill(dset: Stored) -> np.ndarray:
    """Return the fill value, () of the dataset's type. An array, because a NumPy scalar loses the other bits of a
    bool's byte."""
    value = np.zeros((), dset.dtype)
    dset._dcpl.get_fill_value(value)
    return value
