"""Find the datasets of an HDF5 file that `repack` writes with a new layout; the others are copied unchanged."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from h5rows.account import Account
from h5rows.options import RepackOptions
from h5rows.packing.copying import by_blocks, elsewhere
from h5rows.packing.survey import DATASET, UNREADABLE, Survey, grows
from h5rows.reading.external import check_external
from h5rows.reading.filters import missing_filter
from h5rows.reading.memory import check_declared
from h5rows.reading.stored import dtype_of
from h5rows.reading.texts import said_of

SMALL = 4096  # bytes; for smaller datasets a separate page is not worth it


@dataclass
class Contents:
    """The datasets to write row by row, by path. All others are copied unchanged."""

    survey: Survey
    plain: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)  # shape and type of numbers
    vlen: dict[str, tuple[np.dtype, bool]] = field(default_factory=dict)  # to convert to flat values, see vlen_type
    whole: dict[str, int] = field(default_factory=dict)  # bytes of datasets copied with all rows, even unwritten ones
    said: list[str] = field(default_factory=list)  # lines to print: strings that are not UTF-8, lost checksums


def scan(file: h5py.File, options: RepackOptions) -> Contents:
    """Return what to write with a new layout. Raise ConfigError for external data if it is refused."""
    contents = Contents(survey := Survey(file, Account()))
    asked = survey.account.asked
    for node in survey.nodes.values():
        if node.what != DATASET:
            continue
        dset = h5py.Dataset(survey.open(node.path))
        check_external(dset, options.external)
        with contextlib.suppress(*UNREADABLE):  # reported when it is copied
            path, grown = node.path.decode().lstrip("/"), grows(dset.id)
            other = said_of(dset, rows=None)
            contents.said += [f"{path} {line}" for line in other]
            if options.flatten and dset.ndim == 1 and not other and (kind := vlen_type(dset)) is not None:
                contents.vlen[path] = kind
                defined = dset.id.get_create_plist().fill_value_defined()
                asked["fill values"] += defined == h5py.h5d.FILL_VALUE_USER_DEFINED
            elif is_plain(dset) and laid_out_anew(dset, options):
                contents.plain[path] = (dset.shape, native(dset.dtype))
            elif by_blocks(dset.id) and dset.id.get_storage_size():
                contents.whole[path] = int(dset.size or 0) * dset.id.get_type().get_size()
            if path in contents.vlen or elsewhere(dset.id) or (path in contents.plain and options.contiguous):
                asked["extents that can grow"] += grown
    for path in (*contents.plain, *contents.whole):
        check_declared(file[path])
    return contents


def laid_out_anew(dset: h5py.Dataset, options: RepackOptions) -> bool:
    """Return True if a dataset of numbers gets another layout. Small and mostly unwritten datasets keep theirs."""
    if dset.nbytes < SMALL:
        return False
    if elsewhere(dset.id):
        return True
    if missing_filter(dset) is not None or not dset.id.get_storage_size():
        return False
    if grows(dset.id) and not (options.contiguous or options.rows(dset.shape, dset.dtype)):
        return False
    count = math.prod(-(-side // c) for side, c in zip(dset.shape, dset.chunks or dset.shape, strict=True))
    return not dset.chunks or 2 * dset.id.get_num_chunks() >= count


def is_plain(dset: h5py.Dataset) -> bool:
    """Return True for rows of numbers or records whose bytes are the same in NumPy, except for the byte order."""
    dtype = dtype_of(dset)
    if dtype is None or not dset.ndim or not dset.size or dtype.hasobject or dtype.subdtype or padded(dtype):
        return False
    if dtype.kind not in "biufcSV" or (dset.id.get_type().committed() and native(dtype) != dtype):
        return False
    return bool(dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True)))


def padded(dtype: np.dtype) -> bool:
    """Return True if a record has padding bytes, which HDF5 does not keep."""
    parts = [dtype[name] for name in dtype.names or ()]
    inner = [part.subdtype[0] if part.subdtype else part for part in parts]
    return bool(parts) and (sum(part.itemsize for part in parts) < dtype.itemsize or any(map(padded, inner)))


def vlen_type(dset: h5py.Dataset) -> tuple[np.dtype, bool] | None:
    """Return (type of the values, True for strings as UTF-8 bytes) of variable-length samples; None for other types."""
    if dtype_of(dset) is None:
        return None
    if h5py.check_string_dtype(dset.dtype) is not None and dset.dtype.kind == "O":
        return np.dtype(np.uint8), True
    kind = h5py.check_vlen_dtype(dset.dtype)
    numbers = isinstance(kind, (np.dtype, type)) and np.dtype(kind).kind in "biufc"
    return (native(np.dtype(kind)), False) if numbers else None


def as_numbers(sample: Any, kind: np.dtype) -> np.ndarray:
    """Return a variable-length sample as an array, (n,)."""
    return np.frombuffer(sample, np.uint8) if isinstance(sample, bytes) else np.asarray(sample, kind)


def native(dtype: np.dtype) -> np.dtype:
    """Return the type in native byte order, which is read without h5py. Enumerations and records are not changed."""
    return dtype if dtype.isnative or dtype.metadata or dtype.fields else dtype.newbyteorder("=")
