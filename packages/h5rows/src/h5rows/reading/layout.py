"""Find the position of a dataset's bytes in its file, which decides how it is read. No torch, reads no values.

contiguous, or raw chunks of whole rows        -> mapped   gathered from a memory mapping, at the speed of memcpy
the same, of a remote file without a copy      -> ranges   gathered from its blocks on this machine
chunks with filters that filters.py supports   -> chunks   read by offset, decoded in threads
anything else                                  -> h5py     exact, slower
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import h5py
import numpy as np

from h5rows.reading import filters
from h5rows.reading.opening import is_remote
from h5rows.reading.stored import Identity, Stored, stored

_TABLE = 1 << 20  # chunks that are listed even if few of them are written


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
        return "mapped", "contiguous", _layout(dset, dset.shape, [[offset]], [[size]], [[0]], ())
    layout = _chunk_table(dset)
    if isinstance(layout, str):
        return "h5py", layout, None
    rows = f"chunks of {layout.chunk[0]} row{'s' * (layout.chunk[0] > 1)}"
    if layout.offset.shape[1] > 1:
        rows += f", {layout.offset.shape[1]} tiles to a row"
    unwritten = int((layout.size == 0).sum())
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
    if not dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True)):
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
        return filters.obstacle(dset.pipeline, _full_size(dset))
    return None


def _fills(dset: Stored) -> bool:
    create, h5d = dset._dcpl, h5py.h5d
    defined = create.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
    return bool(defined and create.get_fill_time() != h5d.FILL_TIME_NEVER)


def _chunk_table(dset: Stored) -> Layout | str:
    """Return the layout of all chunks; or the reason if HDF5's list of chunks is unreliable or too long."""
    chunks, pipeline = dset.chunks, dset.pipeline
    grid = [-(-n // c) for n, c in zip(dset.shape, chunks, strict=True)]
    count = dset.id.get_num_chunks()
    if math.prod(grid) > max(_TABLE, 4 * count):
        return f"{math.prod(grid)} chunks, of which {count} are written"
    where, stored = [], []

    def visit(info: Any) -> None:
        where.append(info.chunk_offset)
        stored.append((info.byte_offset, info.size, info.filter_mask))

    dset.id.chunk_iter(visit)
    table = np.zeros((3, math.prod(grid)), dtype=np.int64)
    if where:
        corner, extent = np.asarray(where, dtype=np.uint64), np.asarray(stored, dtype=np.uint64)
        reason = _doubt(dset, corner, extent, pipeline)
        if reason is not None:
            return reason
        index = corner.astype(np.int64) // chunks
        table[:, np.ravel_multi_index(tuple(index.T), grid)] = extent.astype(np.int64).T
    offset, size, mask = table.reshape(3, grid[0], -1)
    return _layout(dset, chunks, offset, size, mask.astype(np.uint32), pipeline)


def _doubt(dset: Stored, corner: np.ndarray, extent: np.ndarray, pipeline: filters.Pipeline) -> str | None:
    """Return the reason why a list of chunks may be wrong; None if it is right.

    corner: (n, axes) uint64; extent: (n, 3) uint64 address, size, filter mask.
    """
    wrong = _damaged_index(dset, corner) or _axes_of_hdf5_2_0(dset) or _outside_of_the_file(dset, extent)
    if wrong is None and not pipeline:
        return "chunks of an unexpected size" if (extent[:, 1] != _full_size(dset)).any() else None
    return wrong or _unfiltered_edge(dset, corner, extent)


def _full_size(dset: Stored) -> int:
    return math.prod(dset.chunks) * dset.dtype.itemsize


def _damaged_index(dset: Stored, corner: np.ndarray) -> str | None:
    shape, chunks = np.asarray(dset.shape, np.uint64), np.asarray(dset.chunks, np.uint64)
    unplaced = (corner >= shape).any() or (corner % chunks).any()
    grid = [-(-n // c) for n, c in zip(dset.shape, dset.chunks, strict=True)]
    number = [] if unplaced else np.ravel_multi_index(tuple((corner // chunks).astype(np.int64).T), grid)
    if unplaced or len(np.unique(number)) != len(corner) or len(corner) != dset.id.get_num_chunks():
        return "chunks that HDF5 lists in wrong places"
    return None


def _axes_of_hdf5_2_0(dset: Stored) -> str | None:
    """Detect a bug: HDF5 2.0 lists the chunks of newer files by the wrong axes if exactly one axis, not the first, may
    grow."""
    axes = [axis for axis, most in enumerate(dset.maxshape) if most is None]
    return "chunks that HDF5 lists in wrong places" if len(axes) == 1 and axes != [0] else None


def _outside_of_the_file(dset: Stored, extent: np.ndarray) -> str | None:
    address, size, _ = extent.T
    end = dset.file.identity[2]
    if (size == 0).any() or (address > end).any() or (size > end - np.minimum(address, end)).any():
        return "chunks without bytes, or with an address outside the file"
    return None


def _unfiltered_edge(dset: Stored, corner: np.ndarray, extent: np.ndarray) -> str | None:
    """Detect H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS, which h5py cannot query: chunks at the edge may be stored raw."""
    _, size, mask = extent.T
    over = (corner + np.asarray(dset.chunks, np.uint64) > np.asarray(dset.shape, np.uint64)).any(axis=1)
    if (over & (size == _full_size(dset)) & (mask == 0)).any():
        return "chunks at the edge that may be stored without filters"
    return None


def _layout(dset: Stored, chunk: Any, offset: Any, size: Any, mask: Any, pipeline: Any) -> Layout:
    file = dset.file
    name = file.filename
    path = name if is_remote(name) else os.path.abspath(name)
    offset, size = np.asarray(offset, np.int64), np.asarray(size, np.int64)
    fill, mask = _fill(dset) if (size == 0).any() else None, np.asarray(mask, np.uint32)
    shape, chunk, pipeline = tuple(dset.shape), tuple(chunk), tuple(pipeline)
    return Layout(path, file.identity, dset.name, shape, dset.dtype, chunk, offset, size, mask, pipeline, fill)


def _fill(dset: Stored) -> np.ndarray:
    """Return the fill value, () of the dataset's type. An array, because a NumPy scalar loses the other bits of a
    bool's byte."""
    value = np.zeros((), dset.dtype)
    dset._dcpl.get_fill_value(value)
    return value
