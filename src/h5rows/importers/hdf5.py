"""HDF5 files as a source for `repack`: which datasets are written anew, and their rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from h5rows.importers.base import Bad, Field, Rows, Source
from h5rows.packing.account import Account
from h5rows.packing.copying import SMALL
from h5rows.packing.tree import DATASET, UNREADABLE, Tree, grows
from h5rows.reading.external import REFUSE_EXTERNAL, check_external
from h5rows.reading.filters import filter_name, missing_filter
from h5rows.reading.layout import plan_reader


@dataclass(frozen=True)
class Wanted:
    """flatten: HDF5's variable length becomes values and offsets. external: refuse or allow datasets whose bytes lie in
    other files. fixed: what can grow need not be able to. chunk_rows: (shape, type) -> rows to a chunk, 0 for none.
    small: bytes of a dataset, below which it is copied without a task and a page of its own."""

    flatten: bool = False
    external: str = REFUSE_EXTERNAL
    fixed: bool = False
    chunk_rows: Callable[[tuple[int, ...], np.dtype], int] = lambda shape, dtype: 0
    small: int = SMALL


@dataclass
class Contents:
    """By path: what is written anew, row by row; all else is copied as it is."""

    tree: Tree
    plain: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)  # numbers with rows
    vlen: dict[str, int] = field(default_factory=dict)  # samples of variable length, to be made flat: number of rows
    kept: dict[str, str] = field(default_factory=dict)  # numbers with rows that keep their layout, and why
    rows: dict[str, int] = field(default_factory=dict)  # of the other datasets with rows


def scan(file: h5py.File, account: Account, wanted: Wanted) -> Contents:
    contents = Contents(tree := Tree(file, account))
    for where, node in tree.nodes.items():
        if node.what != DATASET:
            continue
        # by name: HDF5 looks through the whole file for the name of what was opened by a reference
        named = h5py.h5o.open(file.id, node.path.encode("utf-8", "surrogateescape")) if node.named else None
        dset, path = h5py.Dataset(named or tree.open(where, file)), node.path.lstrip("/")
        check_external(dset, wanted.external)
        with contextlib.suppress(*UNREADABLE):  # said where it is copied
            path.encode()
            if not node.named:
                continue
            if wanted.flatten and dset.ndim == 1 and vlen_type(dset) is not None:
                contents.vlen[path] = len(dset)
            elif not is_plain(dset):
                contents.rows |= {path: dset.shape[0]} if dset.shape else {}
            elif (why := reason_to_keep(dset, wanted)) is None:
                contents.plain[path] = (dset.shape, native(dset.dtype))
                if grows(dset.id) and (wanted.fixed or dset.is_virtual or dset.external):
                    account.asked["extents that can grow"] += 1
            else:
                contents.kept[path] = why
    for path in contents.vlen:
        dset = file[path]
        account.asked["extents that can grow"] += grows(dset.id)
        defined = dset.id.get_create_plist().fill_value_defined()
        account.asked["fill values"] += defined == h5py.h5d.FILL_VALUE_USER_DEFINED
    return contents


def reason_to_keep(dset: h5py.Dataset, wanted: Wanted) -> str | None:
    """Why a dataset of numbers keeps its layout, "" where that goes without saying."""
    if dset.nbytes < wanted.small:
        return ""
    if dset.is_virtual or dset.external:
        return None
    if (number := missing_filter(dset)) is not None:
        return f"stored by the filter {filter_name(number)} (number {number}), which is not here"
    if grows(dset.id) and not wanted.fixed and not wanted.chunk_rows(dset.shape, dset.dtype):
        return "able to grow, which needs chunks; --fixed makes them contiguous"
    if not dset.id.get_storage_size():
        return ""  # never written
    if dset.chunks:
        count = math.prod(-(-side // c) for side, c in zip(dset.shape, dset.chunks, strict=True))
        if 2 * dset.id.get_num_chunks() < count:
            return "for the most part never written"
    return None


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


def vlen_type(dset: h5py.Dataset) -> np.dtype | None:
    """Of the values of samples of variable length; strings are UTF-8 bytes."""
    if dtype_of(dset) is None:
        return None
    if h5py.check_string_dtype(dset.dtype) is not None and dset.dtype.kind == "O":
        return np.dtype(np.uint8)
    kind = h5py.check_vlen_dtype(dset.dtype)
    return native(np.dtype(kind)) if isinstance(kind, (np.dtype, type)) and np.dtype(kind).kind in "biufc" else None


def native(dtype: np.dtype) -> np.dtype:
    """In this machine's byte order, which is read without h5py; enumerations and records are left alone."""
    return dtype if dtype.isnative or dtype.metadata or dtype.fields else dtype.newbyteorder("=")


class H5Source(Source):
    """Plain datasets by path. They differ in length, so the parts to write are made by the caller."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path, self.splits, self.account = path, {}, contents.tree.account
        self.fields = {name: Field(shape[1:], dtype) for name, (shape, dtype) in contents.plain.items()}
        self._file = h5py.File(path, "r", rdcc_nbytes=1 << 26)
        self._arrays: dict[str, Any] = {name: self._array(name) for name in contents.plain}
        for name in contents.vlen:
            dset = self._arrays[name] = self._file[name]
            text = h5py.check_string_dtype(dset.dtype) is not None
            self.fields[name] = Field((None,), vlen_type(dset), {"encoding": "utf-8"} if text else {})  # type: ignore[arg-type]

    def _array(self, name: str) -> Any:
        dset = self._file[name]
        if dset.chunks or plan_reader(dset)[0] != "mapped":
            return dset
        return np.memmap(dset.file.filename, dset.dtype, "r", dset.id.get_offset(), dset.shape)

    def mapped(self, name: str) -> bool:
        return isinstance(self._arrays[name], np.ndarray)

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        where: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        return {name: self._read(name, where) for name in fields}, []

    def _read(self, name: str, where: Any) -> Any:
        values, kind = self._arrays[name][where], self.fields[name].dtype
        if not self.fields[name].ragged:
            return np.asarray(values, kind)
        return [np.frombuffer(v, np.uint8) if isinstance(v, bytes) else np.asarray(v, kind) for v in values]

    def identity(self) -> Any:
        stat = self.path.stat()
        return [str(self.path.resolve()), stat.st_size, stat.st_mtime_ns]

    def close(self) -> None:
        self._arrays.clear()
        self._file.close()
