"""HDF5 files as a source for `repack`: plain datasets by rows, and a list of all else, which is copied as it is."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from engine.data import check_external, plan_reader
from engine.errors import ConfigError
from engine.extras import missing
from engine.packing.importers.base import Bad, Field, Rows, Source


@dataclass
class Contents:
    """Paths of what a file holds."""

    plain: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)  # numbers with rows
    vlen: dict[str, int] = field(default_factory=dict)  # samples of variable length, to be made flat: number of rows
    groups: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # scalars, strings, variable length ...: copied by HDF5
    aliases: dict[str, str] = field(default_factory=dict)  # further names of one object
    links: dict[str, Any] = field(default_factory=dict)  # soft and external


def scan(file: h5py.File, flatten: bool, external: str) -> Contents:
    """external: refuse or allow datasets whose bytes lie in files elsewhere."""
    contents, seen = Contents(), {_address(file): "/"}

    def walk(group: h5py.Group, prefix: str) -> None:
        for name in group:
            path, link = prefix + name, group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                contents.links[path] = link
                continue
            item = group[name]
            check_external(item, file, external)
            if (first := seen.setdefault(_address(item), path)) != path:
                contents.aliases[path] = first
            elif isinstance(item, h5py.Group):
                contents.groups.append(path)
                walk(item, path + "/")
            elif isinstance(item, h5py.Dataset) and is_plain(item):
                contents.plain[path] = (item.shape, native(item.dtype))
            elif flatten and isinstance(item, h5py.Dataset) and item.ndim == 1 and vlen_type(item) is not None:
                contents.vlen[path] = len(item)
            else:
                contents.others.append(path)

    walk(file, "")
    return contents


def _address(item: Any) -> Any:
    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def is_plain(dset: h5py.Dataset) -> bool:
    """Rows of numbers (or records of numbers) whose bytes numpy holds as the file does, but for the byte order."""
    dtype = dtype_of(dset)
    if dtype is None or not dset.ndim or not dset.size or dtype.hasobject or dtype.subdtype or padded(dtype):
        return False
    if dtype.kind not in "biufcSV":
        return False
    return bool(dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True)))


def dtype_of(dset: h5py.Dataset) -> np.dtype | None:
    """None: NumPy has no such type."""
    try:
        return dset.dtype
    except TypeError:
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
        self.path, self.splits = path, {}
        self.fields = {name: Field(shape[1:], dtype) for name, (shape, dtype) in contents.plain.items()}
        self._file = h5py.File(path, "r", rdcc_nbytes=1 << 26)
        self._arrays: dict[str, Any] = {name: self._array(name) for name in contents.plain}
        for name in contents.vlen:
            dset = self._arrays[name] = self._file[name]
            text = h5py.check_string_dtype(dset.dtype) is not None
            self.fields[name] = Field((None,), vlen_type(dset), {"encoding": "utf-8"} if text else {})  # type: ignore[arg-type]

    def _array(self, name: str) -> Any:
        dset = self._file[name]
        if number := missing_filter(dset):
            raise ConfigError(missing(f"{self.path}: {name}", f"the HDF5 filter {number}", "codecs"))
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


def missing_filter(dset: h5py.Dataset) -> int | None:
    """The number of a filter without which this installation of HDF5 cannot read the dataset."""
    with contextlib.suppress(ImportError):
        importlib.import_module("hdf5plugin")  # brings the usual ones
    plan = dset.id.get_create_plist()
    numbers = (plan.get_filter(k)[0] for k in range(plan.get_nfilters()))
    return next((n for n in numbers if not h5py.h5z.filter_avail(n)), None)


def copy_attrs(source: Any, target: Any) -> Iterator[str]:
    """Yields those that cannot be copied: references to objects of the old file, types that NumPy lacks."""
    for name in source.attrs:
        try:
            kind = source.attrs.get_id(name).dtype
        except TypeError:
            yield f"{name} (a type that NumPy lacks)"
            continue
        if h5py.check_ref_dtype(kind) or any(h5py.check_ref_dtype(f[0]) for f in (kind.fields or {}).values()):
            yield f"{name} (a reference)"
        else:
            value = source.attrs[name]
            target.attrs.create(name, value, None if isinstance(value, h5py.Empty) else np.shape(value), kind)


def copy_rest(source: h5py.File, target: h5py.File, contents: Contents) -> list[str]:
    """Everything but the rows: groups, attributes, links, and objects that are copied whole -> what was left out."""
    lost: list[str] = []
    for path in contents.groups:
        target.require_group(path)
    for path in ["/", *contents.groups, *contents.plain, *contents.vlen]:
        lost += [f"{path}: attribute {name}" for name in copy_attrs(source[path], target[path])]
    if contents.others and source.id.get_create_plist().get_sizes() != (8, 8):
        raise ConfigError(
            f"{source.filename} was written with addresses of other than 8 bytes, from which HDF5 copies no "
            f"{contents.others[0]} (scalars, strings, variable length ...); write it again with the usual ones"
        )
    for path in contents.others:
        source.copy(source[path], target, name=path)
    for path, link in contents.links.items():
        target[path] = link
    for path, first in contents.aliases.items():
        target[path] = target[first]
    return lost
