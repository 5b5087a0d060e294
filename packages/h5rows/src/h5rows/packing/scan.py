"""What of an HDF5 file `repack` writes anew, and what it copies as it is."""

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
from h5rows.reading.texts import said_of

SMALL = 4096  # bytes of a dataset, below which a page of its own costs more than it brings


@dataclass
class Contents:
    """By path: what is written anew, row by row; all else is copied as it is."""

    survey: Survey
    plain: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)  # numbers with rows
    vlen: dict[str, tuple[np.dtype, bool]] = field(default_factory=dict)  # to be made flat: see vlen_type
    whole: dict[str, int] = field(default_factory=dict)  # bytes of what is copied with all its rows, written or not
    said: list[str] = field(default_factory=list)  # lines: strings that are not UTF-8, checksums that are not kept


def scan(file: h5py.File, options: RepackOptions) -> Contents:
    contents = Contents(survey := Survey(file, Account()))
    asked = survey.account.asked
    for node in survey.nodes.values():
        if node.what != DATASET:
            continue
        dset = h5py.Dataset(survey.open(node.path))
        check_external(dset, options.external)
        with contextlib.suppress(*UNREADABLE):  # said where it is copied
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
    """Whether a dataset of numbers gets another layout: one that is small or hardly written keeps its own."""
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
    """Rows of numbers (or records of numbers) whose bytes numpy holds as the file does, but for the byte order."""
    dtype = dtype_of(dset)
    if dtype is None or not dset.ndim or not dset.size or dtype.hasobject or dtype.subdtype or padded(dtype):
        return False
    if dtype.kind not in "biufcSV" or (dset.id.get_type().committed() and native(dtype) != dtype):
        return False
    return bool(dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True)))


def dtype_of(dset: h5py.Dataset) -> np.dtype | None:
    """None: NumPy has no such type."""
    try:
        return dset.dtype
    except (TypeError, ValueError):
        return None


def padded(dtype: np.dtype) -> bool:
    """Whether a record has bytes that belong to no member: HDF5 does not keep them."""
    parts = [dtype[name] for name in dtype.names or ()]
    inner = [part.subdtype[0] if part.subdtype else part for part in parts]
    return bool(parts) and (sum(part.itemsize for part in parts) < dtype.itemsize or any(map(padded, inner)))


def vlen_type(dset: h5py.Dataset) -> tuple[np.dtype, bool] | None:
    """(type of the values of samples of variable length, whether these are strings, as UTF-8 bytes); None: others."""
    if dtype_of(dset) is None:
        return None
    if h5py.check_string_dtype(dset.dtype) is not None and dset.dtype.kind == "O":
        return np.dtype(np.uint8), True
    kind = h5py.check_vlen_dtype(dset.dtype)
    numbers = isinstance(kind, (np.dtype, type)) and np.dtype(kind).kind in "biufc"
    return (native(np.dtype(kind)), False) if numbers else None


def as_numbers(sample: Any, kind: np.dtype) -> np.ndarray:
    """A sample of variable length, (n,)."""
    return np.frombuffer(sample, np.uint8) if isinstance(sample, bytes) else np.asarray(sample, kind)


def native(dtype: np.dtype) -> np.dtype:
    """In this machine's byte order, which is read without h5py; enumerations and records are left alone."""
    return dtype if dtype.isnative or dtype.metadata or dtype.fields else dtype.newbyteorder("=")
