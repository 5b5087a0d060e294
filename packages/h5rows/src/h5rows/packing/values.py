"""Read and compare values of datasets and attributes of any HDF5 type, and replace their references.

Values of fixed size are handled as raw bytes. Values with variable-length strings or sequences, or with references, are
NumPy arrays; TypeError is raised if NumPy does not have the type.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod
from typing import Any
from zlib import crc32

import h5py
import numpy as np
from h5py import h5d, h5r, h5s, h5t

BLOCK_BYTES = 4 << 20
Swap = Callable[[Any], Any]  # reference -> its replacement


def scattered(tid: Any) -> bool:
    """Return True if values of this type contain references, or addresses of variable-length data stored elsewhere."""
    what = tid.get_class()
    if what == h5t.COMPOUND:
        return any(scattered(tid.get_member_type(k)) for k in range(tid.get_nmembers()))
    if what == h5t.ARRAY:
        return scattered(tid.get_super())
    return what in (h5t.VLEN, h5t.REFERENCE) or (what == h5t.STRING and bool(tid.is_variable_str()))


def refers(tid: Any) -> bool:
    """Return True if values of this type contain references."""
    return bool(tid.detect_class(h5t.REFERENCE))


def in_memory(tid: Any) -> tuple[np.dtype, Any]:
    """Return (NumPy type, HDF5 type) to read or write values with."""
    if not scattered(tid):
        return np.dtype(f"V{tid.get_size()}"), tid
    return tid.dtype, h5t.py_create(tid.dtype)


def read_attribute(attr: Any) -> np.ndarray | None:
    """Return the values of an attribute; None if it has none."""
    if attr.shape is None or not prod(attr.shape):
        return None
    dtype, kind = in_memory(attr.get_type())
    values = np.zeros(attr.shape, dtype)
    attr.read(values, kind)
    return values


def blocks(dset: Any) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Yield (space in memory, space in the file, values) in blocks of a few MB; nothing if none was ever written."""
    shape, layout = dset.shape, dset.get_create_plist().get_layout()
    if shape is None or not prod(shape) or not (dset.get_storage_size() or layout == h5d.VIRTUAL):
        return
    dtype, kind = in_memory(dset.get_type())
    step = max(1, BLOCK_BYTES // (prod(shape[1:]) * dset.get_type().get_size()))
    for begin in range(0, shape[0] if shape else 1, step):
        part = (min(step, shape[0] - begin), *shape[1:]) if shape else ()
        memory = space = h5s.ALL
        if shape:
            # with the dimensions of the dataset: otherwise HDF5 crashes on some virtual datasets
            memory, space = h5s.create_simple(part), dset.get_space()
            space.select_hyperslab((begin, *[0] * (len(shape) - 1)), part)
        values = np.zeros(part, dtype)
        dset.read(memory, space, values, kind)
        yield memory, space, values


def exchanged(values: Any, swap: Swap) -> Any:
    """Return a copy with every reference replaced by swap(reference), also inside records and sequences."""
    if isinstance(values, h5r.Reference):
        return swap(values)
    if not isinstance(values, np.ndarray) or not values.dtype.hasobject:
        return values
    out = values.copy()
    for name in values.dtype.names or ():
        out[name] = exchanged(values[name], swap)
    if values.dtype.names is None:
        flat = out.reshape(-1)
        for k, value in enumerate(flat):
            flat[k] = exchanged(value, swap)
    return out


def spelled(values: Any, name_of: Swap) -> Iterator[Any]:
    """Yield the values in pieces that can be compared; name_of(reference) for each reference."""
    if isinstance(values, h5r.Reference):
        yield name_of(values)
    elif not isinstance(values, np.ndarray):
        yield values
    elif values.dtype.names is not None:
        for name in values.dtype.names:
            yield from spelled(values[name], name_of)
    elif values.dtype.hasobject:
        yield values.shape
        for value in values.reshape(-1):
            yield from spelled(value, name_of)
    else:
        yield values.shape, values.tobytes()


def chunk_sums(dset: h5py.Dataset) -> list[tuple[int, int, int]]:
    """Return (size, mask of filters, crc32) of the stored bytes of each chunk."""
    found: list[tuple[int, int, int]] = []
    fd = os.open(dset.file.filename, os.O_RDONLY)

    def visit(info: Any) -> None:  # without its position, which HDF5 2.0 returns with wrong axes in some cases
        found.append((info.size, info.filter_mask, crc32(os.pread(fd, info.size, info.byte_offset))))

    try:
        if dset.id.get_num_chunks():
            dset.id.chunk_iter(visit)
    finally:
        os.close(fd)
    return found
