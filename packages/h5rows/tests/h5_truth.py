"""What h5py reads of a field, and whether Dataset may refuse it: the side that a test compares with."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - its filters
import numpy as np

MOST = 1 << 20  # elements that are read at once


@dataclass
class Truth:
    """refused: why Dataset must not read it, "" if it must; may: if it may refuse. rows: their number.

    values: row -> what h5py reads there, bytes or str, None where reading raises. loose: row -> bytes that are 255
    where h5py says the same each time."""

    refused: str = ""
    may: bool = False
    rows: int = 0
    shape: tuple[int, ...] = ()  # of a sample; -1 where it differs
    dtype: str = ""  # of a batch
    values: dict[int, Any] = field(default_factory=dict)
    loose: dict[int, bytes] = field(default_factory=dict)
    outside: bool = False  # it leads to other files: read with external='allow' alone


def truth(path: Path, name: str, most_rows: int = 60) -> Truth:
    """By h5py alone, each row by itself: what lies in a damaged part must not spoil the others."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            item, member = lookup(file, name)
            out = group(item) if isinstance(item, h5py.Group) else of_dataset(item, member, most_rows)
            parts = [f"{name}/values", f"{name}/offsets"] if isinstance(item, h5py.Group) else [name]
            out.outside = not out.refused and any(leads_out(file, part) for part in parts)
            return out
    except Exception as error:
        return Truth(f"h5py: {type(error).__name__}: {error}".splitlines()[0])


def lookup(file: h5py.File, name: str) -> tuple[Any, str | None]:
    item: Any = file
    parts = name.split("/")
    for k, part in enumerate(parts):
        if isinstance(item, h5py.Dataset):
            return item, "/".join(parts[k:])
        item = item[part]
    return item, None


def numeric(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" and dtype.char not in "gG"


def batch_type(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int64) if dtype.kind == "u" and dtype.itemsize >= 4 else dtype.newbyteorder("=")


def why_not(dset: h5py.Dataset, member: str | None) -> str:
    """The rules of the README: numbers of any shape with rows, rows of text, rows of different length."""
    if dset.shape is None or dset.shape == ():
        return "no rows"
    dtype = dset.dtype  # TypeError: NumPy has no such type
    if member is not None:
        if not dtype.names or member not in dtype.names:
            return "no such member"
        dtype = dtype[member]
    base = (dtype.subdtype or (dtype, ()))[0]
    vlen, string = h5py.check_vlen_dtype(dtype), h5py.check_string_dtype(dtype)
    if vlen is not None or (string is not None and not dtype.subdtype):
        if dset.ndim != 1:
            return "not of shape (rows,)"
        return (
            "" if string is not None or (np.dtype(vlen).kind in "biuf" and numeric(np.dtype(vlen))) else f"vlen {vlen}"
        )
    if not numeric(base):
        return f"type {dtype}"
    return "" if dset.shape[0] else "no rows"


def chosen(rows: int, most: int) -> list[int]:
    if rows <= most:
        return list(range(rows))
    return sorted({0, 1, rows - 1, *np.random.default_rng(0).integers(0, rows, most).tolist()})


def of_dataset(dset: h5py.Dataset, member: str | None, most_rows: int) -> Truth:
    if why := why_not(dset, member):
        return Truth(why)
    whole = dset.dtype if member is None else dset.dtype[member]
    base, inner = whole.subdtype or (whole, ())
    out = Truth(rows=dset.shape[0], shape=(*dset.shape[1:], *inner), may=may_be_refused(dset))
    if dset.shape[0] == 0:
        return Truth("no rows")
    if int(np.prod(out.shape, dtype=object)) > MOST:
        return Truth("too large to compare", may=True)
    text = not whole.subdtype and h5py.check_string_dtype(whole) is not None
    vlen = None if text else h5py.check_vlen_dtype(whole)
    if text or vlen is not None:
        out.shape, out.dtype = (-1,), "str" if text else str(batch_type(np.dtype(vlen)))
        for row in chosen(out.rows, most_rows):
            out.values[row] = one_object(dset if member is None else dset.fields(member), row, vlen)
        return out
    out.dtype = str(batch_type(base))
    for row in chosen(out.rows, most_rows):
        out.values[row] = one_row(dset, member, row, out)
    set_aside(dset if member is None else dset.fields(member), out)
    return out


def set_aside(values: Any, out: Truth) -> None:
    """Rows that h5py reads otherwise in a block than alone: which of the two is right is known to nobody."""
    begin, end = min(out.values), max(out.values) + 1
    try:
        block = values[begin:end]
    except Exception:
        return
    for row, alone in out.values.items():
        if alone is not None and for_batch(np.ascontiguousarray(block[row - begin])) != alone and row not in out.loose:
            out.loose[row] = bytes(len(alone))


def one_object(dset: h5py.Dataset, row: int, vlen: Any) -> Any:
    try:
        if vlen is None:
            value = dset[row]
            return value.decode() if isinstance(value, bytes) else str(value)
        return for_batch(np.asarray(dset[row], np.dtype(vlen).newbyteorder("=")))
    except Exception:
        return None


def one_row(dset: h5py.Dataset, member: str | None, row: int, out: Truth) -> bytes | None:
    """Twice, into memory of 0 and of 255: what stays as it was is known to nobody."""
    found = []
    for filler in (0, 255):
        try:
            if member is None and dset.dtype.subdtype is None:
                there = np.full((1, *dset.shape[1:]), 0, dset.dtype)
                there.view(np.uint8)[...] = filler
                if there.size:
                    dset.read_direct(there, np.s_[row : row + 1])
            else:
                there = dset[row : row + 1] if member is None else dset.fields(member)[row : row + 1]
            found.append(np.ascontiguousarray(there.astype(there.dtype.newbyteorder("="))))
        except Exception:
            return None
    size = np.dtype(out.dtype).itemsize
    known = (found[0].reshape(-1).view(np.uint8) == found[1].reshape(-1).view(np.uint8)).reshape(-1, found[0].itemsize)
    if not known.all():
        out.loose[row] = np.repeat(known.all(axis=1), size).astype(np.uint8).tobytes()
    return for_batch(found[0])


def for_batch(values: np.ndarray) -> bytes | None:
    """None: above what int64 holds."""
    if values.dtype == np.uint64 and values.size and values.max() >= 1 << 63:
        return None
    return values.astype(batch_type(values.dtype)).tobytes()


def group(item: h5py.Group) -> Truth:
    """`values` and `offsets`."""
    if not {"values", "offsets"} <= set(item):
        return Truth("a group")
    values, offsets = item["values"], item["offsets"][:].astype(np.int64)
    text = bool(item.attrs.get("encoding"))
    kind = "str" if text else str(batch_type(values.dtype))
    out = Truth("", False, len(offsets) - 1, (-1, *values.shape[1:]), kind)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        try:
            out.values[row] = values[begin:end].tobytes().decode() if text else for_batch(values[begin:end])
        except (OSError, UnicodeDecodeError):
            out.values[row] = None
    return out


def may_be_refused(dset: h5py.Dataset, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """HDF5 gives fill values for what a dataset shows and nobody has: Dataset says so."""
    key = (dset.file.filename, dset.name)
    if key in seen:
        return True
    for source in dset.virtual_sources() if dset.is_virtual else ():
        if "%" in source.file_name or "%" in source.dset_name:
            continue
        place = Path(dset.file.filename).parent / source.file_name
        where = Path(dset.file.filename) if source.file_name == "." else place
        with contextlib.ExitStack() as stack:
            try:
                file = dset.file if source.file_name == "." else stack.enter_context(h5py.File(where, locking=False))
                if may_be_refused(file[source.dset_name], seen | {key}):
                    return True
            except (OSError, KeyError):
                return True
    return False


def leads_out(file: h5py.File, name: str) -> bool:
    """Whether a link on this path, or a dataset there, leads to another file, or through one virtual to another."""
    item: Any = file
    for part in filter(None, name.split("/")):
        if not isinstance(item, h5py.Group):
            break
        link = item.get(part, getlink=True)
        if isinstance(link, h5py.ExternalLink) or (isinstance(link, h5py.SoftLink) and leads_out(file, link.path)):
            return True
        item = item[part]
    if not isinstance(item, h5py.Dataset):
        return False
    for source in item.virtual_sources() if item.is_virtual else ():
        if source.file_name != "." or "%" in source.dset_name or leads_out(file, source.dset_name):
            return True
        shown = file.get(source.dset_name)
        if isinstance(shown, h5py.Dataset) and shown.is_virtual:
            return True
    return bool(item.external)
