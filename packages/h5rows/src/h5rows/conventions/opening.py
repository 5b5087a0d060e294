"""Open a field of a file and decode it by the conventions of the program that wrote the file. No torch.

packed numbers (CF)                   -> values; missing ones are replaced as `missing` requires
NAME@mask                             -> bool, True if NAME has no value
NAME@classes                          -> its distinct values, numbers, strings or one-hot rows, as classes 0, 1, ...
                                         with names
MATLAB's arrays                       -> samples along the axis that counts the rows, axes in MATLAB's order
MATLAB's cells of arrays              -> a row per cell
loom's matrix and layers              -> a row per cell
NWB's NAME with NAME_index            -> rows of different length
a group that is a CSR or CSC matrix   -> its rows, dense
a group of codes and categories       -> the codes, with `classes`, the categories' names
a categorical column of pandas        -> the same
a group of values and a mask          -> the values
a NeXus group with a signal           -> the signal
characters (N, length)                -> str
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.cf import Packing, packing_of, rows_of_dimension
from h5rows.conventions.derived import Columns, Indexed, Listed, Longer, Mask, Numbers, Sparse, Turned, Unpacked, Vector
from h5rows.conventions.detect import attribute, kind_of
from h5rows.errors import ConfigError, argument
from h5rows.reading.external import REFUSE_EXTERNAL
from h5rows.reading.fields import Field, Fixed, for_torch, open_field
from h5rows.reading.finding import UNREADABLE, check_type, classes_of, find
from h5rows.reading.memory import check_memory
from h5rows.reading.opening import named
from h5rows.reading.raw import ChunkCache
from h5rows.reading.shared import once
from h5rows.reading.texts import UTF_8, check_encoding, decoded, name_of

DROP = "drop"
_AT_ONCE = 16 << 20  # bytes
MOST_CLASSES = 10_000
_LOOKED_THROUGH = 1 << 24  # values of an integer field (N,) that are searched for missing ones; indices of a matrix
DIMENSION_ALONE = "This is a netCDF dimension but not a netCDF variable"
Names = Sequence[str] | None


def parts_of(name: Any) -> tuple[Any, str]:
    """Return (NAME, part) of NAME@part. A name that is not text is returned as it is; `find` raises the error."""
    return name.partition("@")[::2] if isinstance(name, str) else (name, "")


@dataclass(frozen=True)
class How:
    """The arguments of a data set on which its fields depend.

    fields: (name in the batch, name in the file, relative to the group). groups: of all splits; NAME@classes numbers
    the values of all of them together. decode: False returns the numbers as stored. missing: replacement of a missing
    value, a number or `drop`; or (field, replacement), NaN for the others. encoding: of strings.
    """

    fields: tuple[tuple[str, str], ...]
    groups: tuple[str, ...]
    swmr: bool = False
    external: str = REFUSE_EXTERNAL
    decode: bool = False
    missing: Any = "nan"
    encoding: str = UTF_8
    cache_gb: float | None = None


def how(fields: Mapping[str, str | None], groups: Sequence[str] = (), missing: Any = "nan", **more: Any) -> How:
    """Return the arguments as a key. missing: a replacement, or field -> replacement."""
    named = tuple((name, path) for name, path in fields.items() if path is not None)
    missing = tuple(sorted(missing.items(), key=str)) if isinstance(missing, Mapping) else missing
    return How(named, tuple(groups), missing=missing, **more)


class Opened:
    """Fields of a group of one open file. kind: of the file; None: detect it."""

    def __init__(self, file: h5py.File, group: str, cache: ChunkCache, how: How, kind: str | None = None) -> None:
        self.file, self.group, self.cache, self.how = file, group, cache, how
        self.swmr, self.external, self.encoding = how.swmr, how.external, check_encoding(how.encoding)
        self.names, self.meant = dict(how.fields), how.decode and not how.swmr
        self.fills = checked(dict(how.missing) if isinstance(how.missing, tuple) else how.missing, self.names)
        if not self.meant and (given := [value for value in self.fills.values() if value == value]):
            why = argument("decode", True) + f" and {argument('swmr', False)}" * how.swmr
            raise ConfigError(f"{argument('missing', given[0])}: has no effect without {why} - remove it, or set that")
        self.kind = (kind or kind_of(file)) if self.meant else "plain"
        self.rows = self._matlab_rows() if self.kind == "matlab" else None
        self.num_classes: dict[str, int | None] = {}  # in the attribute `classes`; fields that were opened
        self._lacking: list[Unpacked] = []  # fields whose rows without a value are removed

    def _matlab_rows(self) -> int | None:
        """Return the number of samples, from the axis that the arrays have in common; None if they have none."""
        shapes: list[tuple[int, ...]] = []
        for field, name in self.names.items():
            item, _ = find(self.file, self.group, parts_of(name)[0], argument(f"fields.{field}"), self.external)
            if isinstance(item, h5py.Dataset) and item.ndim > 1:
                shapes.append(item.shape)
        return rows_of(shapes)

    def field(self, field: str, place: tuple[Any, str | None] | None = None) -> tuple[Field, Names]:
        """Return (the field, the names of its classes if the file has them).

        field: name in the batch. place: as `find` returns it, if it was called.
        """
        key, name = argument(f"fields.{field}"), self.names[field]
        plain, part = parts_of(name) if self.meant else (name, "")
        where = f"{self.file.filename}: {plain} ({key})"
        if part not in ("", "mask", "classes"):
            raise ConfigError(f"{where}: expected @mask (which values are missing) or @classes (its distinct values)")
        if part == "classes":
            return self._classes(field, plain, where)
        with named(where):
            item, member = place or find(self.file, self.group, plain, key, self.external)
            missing = self.fills.get(field, math.nan)
            apart = f"uns/{member}_categories"  # AnnData below 0.7
            if member is not None and self.kind == "anndata" and isinstance(self.file.get(apart), h5py.Dataset):
                found, names = self._codes(self._raw(plain, key), self.file[apart], missing, where)
            elif (
                member is not None
                and self.kind in ("pandas", "pytables")  # of a table in a group, such as key="a/df"
                and attribute(item, f"{member}_meta") == "category"
            ):
                meta, _ = find(self.file, item.parent.name, f"meta/{member}/meta/table", key, self.external)
                found, names = self._codes(self._raw(plain, key), meta.fields("values"), missing, where)
            elif not self.meant or member is not None:
                found, names = self._raw(plain, key, (item, member)), None
            elif isinstance(item, h5py.Group):
                found, names = self._group(item, key, missing, where)
            else:
                check_type(item, key)
                found, names = self._dataset(item, part, key, missing, where)
        asked = self.meant and missing == missing  # otherwise NaN remains
        if asked and not isinstance(found, (Unpacked, Mask)) and found.dtype.kind == "f" and found.shape[0] >= 0:
            found = unpacked(found, Packing(found.dtype, missing=(math.nan,)), missing, where)
        if missing == DROP and isinstance(found, Unpacked) and found.packing.masks:
            self._lacking.append(found)
        stated, number = classes_of(item, self.encoding)
        if number != UNREADABLE and self.kind == "plain":
            self.num_classes[field] = number
        return found, names or stated

    def rows_without_value(self) -> np.ndarray | None:
        """Return (N,) bool, True for rows to remove, because an opened field has no value there; None if there are
        none."""
        if not self._lacking:
            return None
        key = ("missing", self.group, sorted(self.names.items()), self.fills, self.encoding)
        return once([self.file.filename], key, self._missing, self.swmr, self.external)[0]

    def _missing(self) -> list[np.ndarray]:
        """Return the mask (N,) of `rows_without_value`, in a list."""
        mask: Any = False
        check_memory(sum(map(len, self._lacking)), "the mask of rows without a value")
        for field in self._lacking:
            step = max(1, _AT_ONCE // max(1, field.inner.row_bytes))
            blocks = (np.arange(k, min(k + step, len(field))) for k in range(0, len(field), step))
            lacks = [field.packing.masked(field.inner.read(rows)).reshape(len(rows), -1).any(axis=1) for rows in blocks]
            lost = np.concatenate([np.zeros(0, bool), *lacks])  # also for a group without rows
            mask = lost | mask
        return [mask]

    def _classes(self, field: str, plain: str, where: str) -> tuple[Any, Names]:
        """Return the distinct values of a field (N,) over all splits, in ascending order, as classes 0, 1, ..."""
        groups = sorted({self.group, *self.how.groups})
        key = ("classes", plain, groups, sorted(self.names.items()), self.encoding)
        read = partial(self._class_codes, field, plain, where, groups)
        distinct, *all_codes = once([self.file.filename], key, read, self.swmr, self.external)
        codes = all_codes[groups.index(self.group)]
        names = [f"{value:g}" if isinstance(value, float) else str(value) for value in distinct.tolist()]
        found = unpacked(Numbers(codes), Packing(codes.dtype, missing=(-1,)), self.fills.get(field, math.nan), where)
        if self.fills.get(field) == DROP:
            self._lacking.append(found)
        return found, names

    def _class_codes(self, field: str, plain: str, where: str, groups: Sequence[str]) -> list[np.ndarray]:
        """Return [the distinct values over all groups, the class of each row of the first group, -1 for NaN, ...]."""
        columns = []
        named = {**self.names, field: plain}  # with the others, because they determine MATLAB's axis
        alone = replace(self.how, fields=tuple(named.items()), missing="nan")
        for group in groups:
            found, _ = Opened(self.file, group, self.cache, alone).field(field)
            check_memory(3 * found.nbytes(None), f"{where}: all its values for @classes")
            if (column := one_per_row(found, np.arange(len(found)))) is None:
                either = "classes require one value per row, or zeros and a single 1"
                raise ConfigError(f"{where} has rows of the shape {found.shape[1:]}; {either}")
            columns.append(column)
        item, _ = find(self.file, groups[0], plain, argument(f"fields.{field}"), self.external)
        lost = attribute(item.parent, "nan_rep")  # the text that pandas stores for a missing string
        kept = [(own == own) & (own != lost) for own in columns]
        distinct = np.unique(np.concatenate([own[of] for own, of in zip(columns, kept)]))
        if len(distinct) > MOST_CLASSES:
            raise ConfigError(f"{where} has {len(distinct):,} distinct values, too many for classes")
        codes = [np.where(of, np.searchsorted(distinct, own), -1).astype(np.int64) for own, of in zip(columns, kept)]
        return [distinct, *codes]

    def _raw(self, name: str, key: str, place: tuple[Any, str | None] | None = None) -> Any:
        how = (self.cache, self.swmr, self.external, self.encoding, place)
        return open_field(self.file, self.group, name, key, *how)

    def _dataset(self, item: h5py.Dataset, part: str, key: str, missing: float | str, where: str) -> tuple[Any, Names]:
        if self.kind == "matlab" and (item.dtype == h5py.ref_dtype or attribute(item, "MATLAB_class") == "char"):
            if item.dtype == h5py.ref_dtype and (cells := matlab_cells(item, self.cache.max_bytes, where)):
                alike = len({cell.shape for cell in cells}) == 1
                return Numbers(np.stack(cells)) if alike else Listed(cells, "cells"), None
            return Listed(matlab_texts(item, where), "characters"), None
        if item.dtype == "S1" and item.ndim == 2:
            texts = [decoded(row.tobytes().rstrip(b"\0 "), where, self.encoding) for row in item[:]]
            return Listed(texts, "characters"), None
        if str(attribute(item, "NAME")).startswith(DIMENSION_ALONE):  # its values were never written
            other = f"_nc4_non_coord_{item.name.rpartition('/')[2]}"
            hint = f"; the variable of this name is {other}" if other in item.parent else ""
            raise ConfigError(f"{where} is a netCDF dimension without values{hint}")
        check_numbers(item, where)
        raw = self._raw(item.name, key)
        if not isinstance(raw, Fixed):
            return raw, None
        if attribute(item, "MATLAB_class") is not None:
            return self._matlab(raw, where), None
        if self.kind == "loom" and len(raw.shape) == 2 and item.name.startswith(("/matrix", "/layers/")):
            return Columns(raw, self.cache.max_bytes, where), None
        index = f"{item.name.rpartition('/')[2]}_index"
        if self.kind == "nwb" and index in set(item.parent):  # `in item.parent` follows links
            ends, _ = find(self.file, item.parent.name, index, key, self.external)
            check_memory(2 * ends.nbytes, f"{where}: its index")
            return Indexed(raw, np.asarray(ends[:], np.int64), where), None
        categories = item.attrs.get("categories")  # AnnData below 0.8
        if isinstance(categories, h5py.Reference):
            return self._codes(raw, self.file[categories], missing, where)
        packing = packing_of(item, self.kind == "netcdf")
        # a replacement is set, so NaN is missing, too
        if packing is not None and packing.stored.kind == "f" and missing == missing:
            packing = replace(packing, missing=(*packing.missing, math.nan))
        if self.kind == "netcdf" and (rows := rows_of_dimension(item)) > len(raw):
            raw = Longer(raw, rows, item.fillvalue)
        if part == "mask":
            return Mask(raw, packing or Packing(raw.dtype)), None
        return raw if packing is None else unpacked(raw, packing, missing, where), None

    def _matlab(self, raw: Fixed, where: str) -> Any:
        first, last = raw.shape[-1], raw.shape[0]  # axes in MATLAB's order
        if len(raw.shape) == 2 and 1 in raw.shape:  # a vector, N x 1 or 1 x N
            return Vector(raw)
        along_last = len(raw.shape) > 2 if self.rows is None or first == last else last == self.rows
        if self.rows is not None and self.rows not in (first, last):
            raise ConfigError(f"{where} is {'x'.join(map(str, raw.shape[::-1]))} in MATLAB, expected {self.rows} rows")
        return Turned(raw) if along_last else Columns(raw, self.cache.max_bytes, where)

    def _group(self, group: h5py.Group, key: str, missing: float | str, where: str) -> tuple[Any, Names]:
        check_numbers(group, where)
        kind = attribute(group, "encoding-type") or attribute(group, "h5sparse_format")
        if kind in ("csr_matrix", "csc_matrix", "csr", "csc"):
            return self._sparse(group, kind[:3], key, where), None
        if kind == "categorical":
            return self._codes(self._raw(f"{group.name}/codes", key), group["categories"], missing, where)
        if str(kind).startswith("nullable-") and {"values", "mask"} <= set(group):
            return self._nullable(group, key, missing, where), None
        if attribute(group, "MATLAB_sparse") is not None:
            return self._sparse(group, "csc", key, where), None
        if {"data", "indices", "indptr", "shape"} <= set(group):  # 10x Genomics
            return self._sparse(group, "csr", key, where), None
        if signal := attribute(group, "signal"):
            item, _ = find(self.file, group.name, str(signal), key, self.external)
            return self._dataset(item, "", key, missing, where)
        return self._raw(group.name, key), None

    def _sparse(self, group: h5py.Group, kind: str, key: str, where: str) -> Sparse:
        matlab = (rows := attribute(group, "MATLAB_sparse")) is not None
        if matlab and "data" not in group:
            raise ConfigError(f"{where} contains only zeros; choose another field")
        names = ("data", "ir", "jc") if matlab else ("data", "indices", "indptr")
        values, columns = (self._raw(f"{group.name}/{name}", key) for name in names[:2])
        check_memory(2 * group[names[2]].nbytes, f"{where}: its {names[2]}")
        starts = np.asarray(group[names[2]][:], np.int64)
        shape = (rows, len(starts) - 1) if matlab else group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
        count, width = (int(side) for side in (group["shape"][:] if shape is None else shape))
        if shape is None and len(starts) != count + 1:  # stored by columns: each is a cell, and becomes a row
            count, width = width, count
        sides = (count, width) if kind == "csr" else (width, count)
        if len(starts) != sides[0] + 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > len(values):
            steps = f"from 0 to {len(values)} in {sides[0]} steps"
            raise ConfigError(f"{where}: its {names[2]} must increase {steps}; write the file again")
        check_memory(2 * width * values.dtype.itemsize, f"{where}: dense rows of {width:,} columns")
        if kind == "csc":
            size = values.nbytes(None) + columns.nbytes(None)
            if size > self.cache.max_bytes:
                what = f"{where} is stored by columns (CSC), and converting it takes {size / 1e6:,.0f} MB of memory"
                raise ConfigError(f"{what} - set {argument('cache_mb')}={-(-size >> 20)}, or write X as CSR")
            held, starts = by_rows(values.column(), Sparse.inside(columns.column(), count, where), starts, count)
            return Sparse(Numbers(held[0]), Numbers(held[1]), starts, width, where)
        Sparse.inside(columns.read(np.arange(min(len(columns), _LOOKED_THROUGH))), width, where)
        return Sparse(values, columns, starts, width, where)

    def _nullable(self, group: h5py.Group, key: str, missing: float | str, where: str) -> Any:
        """Return AnnData's values that have their own mask, in memory. A number that does not occur marks missing
        values."""
        values, mask = (self._raw(f"{group.name}/{name}", key).column() for name in ("values", "mask"))
        none: Any = math.nan
        if values.dtype.kind != "f":
            values = values.astype(np.int64)
            none = values.min(initial=0) - 1
        return unpacked(Numbers(np.where(mask, none, values)), Packing(values.dtype, missing=(none,)), missing, where)

    def _codes(self, raw: Fixed, categories: Any, missing: float | str, where: str) -> tuple[Any, Names]:
        names = [name_of(name, self.encoding) for name in categories[:]]
        codes = raw.column()
        if len(codes) and codes.max() >= len(names):
            raise ConfigError(f"{where} has the code {codes.max()}, but {len(names)} categories; write the file again")
        return unpacked(raw, Packing(raw.dtype, missing=(-1,)), missing, where), names


def one_per_row(field: Field, rows: np.ndarray) -> np.ndarray | None:
    """Return the value of each row, or the place of the 1 if all rows are one-hot. None if they are neither."""
    if field.text:
        return np.asarray(field.read(rows), dtype=str)
    if field.shape[0] == -1:
        return None
    values = field.read(rows).reshape(len(rows), -1)
    if values.shape[1] == 1:
        return np.asarray(values[:, 0])
    one_hot = len(field.shape) == 2 and (np.sum(values == 1, axis=1) == 1).all() and np.sum(values != 0) == len(rows)
    return values.argmax(axis=1) if one_hot else None


def check_numbers(item: h5py.Dataset | h5py.Group, where: str) -> None:
    """Raise ConfigError for objects that MATLAB does not store as plain values."""
    if attribute(item, "MATLAB_empty"):  # the dataset contains its shape
        raise ConfigError(f"{where} is empty in MATLAB; choose another field")
    if attribute(item, "MATLAB_object_decode") is not None:
        problem = f"{where} is a MATLAB {attribute(item, 'MATLAB_class')}, whose format is not supported"
        raise ConfigError(f"{problem}; save it as an array with double(), cellstr() or table2array()")


def matlab_texts(item: h5py.Dataset, where: str) -> list[str]:
    """Return one string per row of a char array, or per cell of a cell array."""
    if attribute(item, "MATLAB_class") == "char":
        rows = item[()].T if not attribute(item, "MATLAB_empty") else np.zeros((0, 0), np.uint16)
        return [np.ascontiguousarray(row, np.uint16).tobytes().decode("utf-16-le") for row in np.atleast_2d(rows)]
    texts = []
    for reference in item[()].T.reshape(-1):
        cell = item.file[reference]
        if attribute(cell, "MATLAB_class") != "char":
            both = f"text and {attribute(cell, 'MATLAB_class')}"
            raise ConfigError(f"{where}: its cells contain {both}; save texts and numbers in two arrays")
        rows = matlab_texts(cell, where)
        if len(rows) > 1 and any(len(row) > 1 for row in rows):
            raise ConfigError(f"{where}: a cell contains {len(rows)} rows of characters; save one text per cell")
        texts.append("".join(rows))  # also of a column of characters
    return texts


def matlab_cells(item: h5py.Dataset, most_bytes: int, where: str) -> list[np.ndarray]:
    """Return the array in each cell of a cell array, with MATLAB's axes; [] if the first cell contains text.

    Vectors are (length,), single numbers (). Matrices that differ in one side are turned: (that side, other side).
    """
    held = [item.file[reference] for reference in item[()].reshape(-1)]
    kinds = sorted({str(attribute(cell, "MATLAB_class")) for cell in held})
    if not held or attribute(held[0], "MATLAB_class") == "char":
        return []
    if not all(map(is_array, held)):
        what = f"{where}: its cells contain {' and '.join(kinds)}"
        raise ConfigError(f"{what}; cells can be read if all contain text, or all arrays of numbers")
    if item.ndim != 2 or 1 not in item.shape:
        sides = "x".join(map(str, item.shape[::-1]))
        raise ConfigError(f"{where} is a cell array of {sides}, expected N x 1 or 1 x N, one cell per row")
    size = sum(cell.nbytes for cell in held)
    if size > most_bytes:
        what = f"{where}: its cells take {size / 1e6:,.0f} MB of memory"
        raise ConfigError(f"{what} - set {argument('cache_mb')}={-(-size >> 20)}, or save them as one array")
    empty = [bool(attribute(cell, "MATLAB_empty")) for cell in held]
    cells = [np.zeros((0, 0)) if none else for_torch(cell[()].T, where) for cell, none in zip(held, empty, strict=True)]
    full = [cell for cell in cells if cell.size]
    dtype = np.result_type(*(full or cells))
    if all(cell.size == 1 for cell in cells):
        cells = [cell.reshape(()) for cell in cells]
    elif all(cell.ndim == 2 and 1 in cell.shape for cell in full):
        cells = [cell.reshape(-1) for cell in cells]
    elif len({cell.shape for cell in cells}) > 1:
        width, height = ({cell.shape[side] for cell in full} if full else set() for side in (-1, 0))
        if any(cell.ndim != 2 for cell in full) or (len(width) > 1 and len(height) > 1):
            sizes = " and ".join(sorted({"x".join(map(str, cell.shape)) for cell in full})[:2])
            raise ConfigError(f"{where}: its cells are arrays of different sizes, such as {sizes}; give them one size")
        turned = len(width) > 1  # F x T: the time is along the second axis
        side = next(iter(height if turned else width))
        cells = [(cell.T if turned else cell) if cell.size else np.zeros((0, side)) for cell in cells]
    return [np.asarray(cell, dtype, order="C") for cell in cells]


def is_array(cell: Any) -> bool:
    """Return True if a cell contains an array of numbers."""
    kind = attribute(cell, "MATLAB_class")
    numbers = kind in ("double", "single", "logical") or str(kind).lstrip("u").startswith("int")
    return isinstance(cell, h5py.Dataset) and numbers and cell.dtype.kind in "iuf"


def has_meaning(file: h5py.File, item: Any) -> bool:
    """Return True if decoding may change a field."""
    if kind_of(file) != "plain":
        return True
    return packing_of(item, False) is not None if isinstance(item, h5py.Dataset) else "values" not in item


def checked(missing: Any, fields: Mapping[str, str]) -> dict[str, float | str]:
    """Return field -> replacement from `missing`. Raise ConfigError for unknown fields and invalid values."""
    each = dict(missing) if isinstance(missing, Mapping) else dict.fromkeys(fields, missing)
    for field, value in each.items():
        if field not in fields:
            raise ConfigError(
                f"{argument('missing')} has {field!r}, which is not in {argument('fields')}: {sorted(fields)}"
            )
        if value not in (DROP, "nan") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigError(f"{argument('missing')}={value}: must be a number, nan, or drop (removes such rows)")
    return {field: math.nan if value == "nan" else value for field, value in each.items()}


def unpacked(raw: Field, packing: Packing, missing: float | str, where: str) -> Any:
    """Return the unpacked field. missing: replacement of missing values.

    An integer field (N,) is first searched for missing values; if it has none, it stays an integer field.
    """
    stays = packing.dtype.kind in "iu" and len(raw.shape) == 1 and len(raw) <= _LOOKED_THROUGH
    if not packing.masks or missing == DROP or (stays and not packing.masked(raw.column()).any()):
        return Unpacked(raw, packing, None, where)
    return Unpacked(raw, packing, float(missing), where)


def by_rows(
    values: np.ndarray, rows: np.ndarray, starts: np.ndarray, count: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Convert a matrix stored by columns to ((values, columns), starts) by rows. rows: (stored,) row of each value.
    count: number of rows."""
    columns = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.argsort(rows, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    return (values[order], columns[order]), begins.astype(np.int64)


def rows_of(shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Return how many samples MATLAB's arrays have in common: the size of a first or last axis that all have; if
    several fit, the length of a vector. None if it is not unique."""
    if not shapes:
        return None
    common = set.intersection(*({shape[0], shape[-1]} for shape in shapes))
    vectors = {max(shape) for shape in shapes if len(shape) == 2 and min(shape) == 1} & common
    found = vectors if len(vectors) == 1 else common
    return next(iter(found)) if len(found) == 1 else None


def lost_share(field: Any, look: bool = False, rows_of_it: bool = False) -> float:
    """Return the share of a field's values that are missing or NaN. For a large field, it is estimated from random
    rows.

    look: include fields that declare no missing values. rows_of_it: return the share of rows with a missing value.
    """
    packed = isinstance(field, (Unpacked, Mask))
    if not len(field) or not (packed or (look and field.dtype.kind == "f")):
        return 0.0
    inner, size = field.inner if packed else field, len(field)
    if inner.nbytes(None) > _LOOKED_THROUGH:
        some = min(1000, max(1, _LOOKED_THROUGH // max(1, inner.row_bytes)))
        rows = np.unique(np.random.default_rng(0).integers(size, size=some))
    else:
        rows = np.arange(size)
    stored = inner.read(rows)
    mask = (stored != stored) | (field.packing.masked(stored) if packed else False)
    mask = mask.reshape(len(mask), -1).any(1) if rows_of_it else mask
    return float(mask.mean()) if math.prod(mask.shape) else 0.0
