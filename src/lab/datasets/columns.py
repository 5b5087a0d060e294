"""Read fields of a batch from columns of Arrow tables (numbers, lists of one length, strings as class indices), and
choose the rows of a split.

fields                       columns of the table               in a batch of B rows
x: [age, height, weight]     three columns of numbers           x: (B, 3)
x: embedding                 lists of 768 numbers               x: (B, 768)
y: species                   strings                            y: (B,) int64, index in the sorted names
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h5rows.integration import first_non_finite, fold_rows, rows_in_share
from lab.h5_errors import h5_mistakes
from samebits.errors import ConfigError, RunFailed

EXAMPLE = "data.fields={x: [a, b, c], y: label}"
PACK = "pack it into HDF5 instead: docs/pack_data.md"
# torch cannot compute with these types, so they are converted to a type that contains all their values
WIDER = {"uint16": np.dtype(np.int32), "uint32": np.dtype(np.int64), "uint64": np.dtype(np.int64)}


class TableRows:
    """The rows of a split: the base class of `BatchDataset`s of tables, which define `gather` and `where`.

    _origin: names the table, or the concatenated files. _rows: (N,) int64, the numbers of the split's rows in it.
    """

    spec: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    gather: Callable[[np.ndarray], dict[str, Tensor]]
    _origin: Any
    _rows: np.ndarray

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        batch = self.gather(np.asarray([range(len(self))[i]], dtype=np.int64))
        return {field: values[0] for field, values in batch.items()}

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row as tensors."""
        return sum(int(np.prod(s, dtype=np.int64)) * d.itemsize for s, d in self.spec.values())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows of this split as tensors."""
        return len(self) * self.row_bytes

    def shared_rows(self, other: TableRows) -> int:
        """Return how many rows are also rows of the other split."""
        return int(np.isin(self._rows, other._rows).sum()) if self._origin == other._origin else 0

    def find_non_finite(self) -> str | None:
        """Return field, row and file of the first inf or NaN, as text; None if the first 256 MB contain none."""
        return first_non_finite(self)


class Columns:
    """The fields of a batch as columns of tables with one schema.

    fields: {field: a column, or a list of columns that are stacked; null: no such field}. schema: the tables' schema.
    where: name of the data in messages. missing: refuse, or nan, which replaces missing floats. first: column -> an
    arrow array of its first cell. classes: column of strings -> the names of its classes.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        schema: Any,
        where: str,
        missing: str,
        first: Callable[[str], Any],
        classes: Callable[[str], list[str]],
    ) -> None:
        if missing not in ("refuse", "nan"):
            raise ConfigError(f"data.missing={missing}: must be refuse or nan")
        self._missing = missing
        self.fields = {field: columns for field, columns in fields.items() if columns is not None}
        if not self.fields:
            raise ConfigError(f"data.fields is empty: give at least one, such as {EXAMPLE}")
        self.class_names: dict[str, list[str]] = {}
        self.spec: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._dtypes: dict[str, np.dtype] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for field, columns in self.fields.items():
            key, names = f"data.fields.{field}", columns_of(columns)
            if not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"{key}={columns}: must be a column or a list of columns, such as {EXAMPLE}")
            if unknown := [name for name in names if name not in schema.names]:
                raise ConfigError(f"{key}: {where} has no column {unknown[0]!r}; it has {schema.names}")
            kinds = [self._learn(key, name, schema.field(name).type, where, first) for name in names]
            shapes = {name: self._shapes[name] for name in names}
            if len(set(shapes.values())) > 1:
                raise ConfigError(f"{key}: {where}: columns of one field must have equal shapes, but have {shapes}")
            if any(kind is None for kind in kinds):  # `None in`: a dtype equals None
                if len(names) > 1 or not isinstance(columns, str) or shapes[columns]:
                    raise ConfigError(f"{key}: {where}: strings cannot be stacked; give one column: {key}={names[0]}")
                self.class_names[field], kinds = classes(columns), [np.dtype(np.int64)]
            dtype: Any = np.result_type(*(kind for kind in kinds if kind is not None))
            dtype = WIDER.get(dtype.name, dtype)
            self._dtypes[field] = dtype
            stacked = () if isinstance(columns, str) else (len(names),)
            self.spec[field] = (*stacked, *shapes[names[0]]), torch.from_numpy(np.empty(0, dtype)).dtype

    @property
    def names(self) -> list[str]:
        """Return the columns of all fields, each once."""
        return list(dict.fromkeys(name for columns in self.fields.values() for name in columns_of(columns)))

    def outputs(self, field: str, extremes: Callable[[str], tuple[int, int]]) -> int:
        """Return the number of outputs that predict a field: classes, or the elements of a sample of floats.

        extremes: column of integers -> its smallest and its largest value. Raise ConfigError for a negative label."""
        if field not in self.fields:
            raise ConfigError(f"data.fields has no {field!r}; it has {sorted(self.fields)}")
        if field in self.class_names:
            return max(2, len(self.class_names[field]))
        shape, dtype = self.spec[field]
        if dtype.is_floating_point:
            return int(np.prod(shape, dtype=np.int64))
        lowest, largest = zip(*(extremes(name) for name in columns_of(self.fields[field])))
        if min(lowest) < 0 and not shape:  # in lists, -100 means that a position has no label
            raise ConfigError(
                f"data.fields.{field}={self.fields[field]}: has the negative label {min(lowest)}; classes are 0, 1, "
                "...: correct the labels, or set data.num_outputs"
            )
        return max(2, 1 + max(largest))

    def arrays(self, table: Any, where: str) -> dict[str, np.ndarray]:
        """Return {field: (rows, *shape)} of an arrow table. where: its origin, for messages.

        Raise RunFailed for a cell that is missing or has another length than the first one."""
        made = {}
        for field, columns in self.fields.items():
            parts = [self._values(field, name, table.column(name), where) for name in columns_of(columns)]
            made[field] = parts[0] if isinstance(columns, str) else np.stack(parts, axis=1)
        return made

    def _learn(self, key: str, name: str, kind: Any, where: str, first: Callable[[str], Any]) -> np.dtype | None:
        """Store the shape of a column's cells. Return the dtype of its numbers; None for strings."""
        import pyarrow as pa
        import pyarrow.types as pt

        shape, cells = [], first(name) if is_list(kind) else None
        while is_list(kind):
            if cells is None or not len(cells) or cells.null_count:
                raise ConfigError(
                    f"{key}: {where}: column {name!r} begins with an empty list, so its length is unknown"
                )
            shape.append(len(cells.flatten()) // len(cells))
            cells, kind = cells.flatten(), kind.value_type
        self._shapes[name] = tuple(shape)
        if pt.is_dictionary(kind):
            kind = kind.value_type
        if pt.is_string(kind) or pt.is_large_string(kind):
            return None
        if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
            return pa.array([], kind).to_numpy(zero_copy_only=False).dtype  # to_pandas_dtype may need pandas
        raise ConfigError(f"{key}: {where}: column {name!r} is {kind}; numbers, lists and strings are read - {PACK}")

    def _values(self, field: str, name: str, cells: Any, where: str) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as pt

        rows, what = len(cells), f"data.fields.{field}: {where}: column {name!r}"
        cells = pa.concat_arrays(cells.chunks) if cells.num_chunks else pa.array([], cells.type)
        for length in self._shapes[name]:
            sizes = None if pt.is_fixed_size_list(cells.type) else pc.list_value_length(cells)
            if cells.null_count or (sizes is not None and len(cells) and pc.any(pc.not_equal(sizes, length)).as_py()):
                raise RunFailed(f"{what} has a list without a value or of another length than {length} - {PACK}")
            cells = cells.flatten()
        if pt.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if cells.null_count and not (pt.is_floating(cells.type) and self._missing == "nan"):
            raise RunFailed(f"{what}: {missing_values(cells.null_count, pt.is_floating(cells.type))}")
        if field in self.class_names:
            indices = pc.index_in(cells, value_set=pa.array(self.class_names[field], cells.type))
            return indices.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        dtype = pa.from_numpy_dtype(self._dtypes[field])
        try:
            cells = cells if cells.type == dtype else cells.cast(dtype)
        except pa.ArrowInvalid as error:  # 2^53 + 1 as float64, 2^63 as int64
            raise RunFailed(f"{what} has a number that {dtype} cannot represent: {error}") from None
        return cells.to_numpy(zero_copy_only=False).reshape(rows, *self._shapes[name])  # type: ignore[no-any-return]


def rows_of_split(
    rows: np.ndarray,
    entry: Mapping[str, Any],
    key: str,
    column: Callable[[str, str], np.ndarray],
    folds: int | None,
    fold: int | None,
    fold_repeat: int,
    stratify_by: str | None,
) -> np.ndarray:
    """Return the rows of an entry of data.splits: its share of `rows`, reduced to its fold in a cross-validation.

    entry: {rows: [BEGIN, END] or null, by: random, blocks or a column, whose equal values stay together, fold: train,
    val or null}. key: its name in messages. column: (name, key) -> all values of a column."""
    by, share, part = entry.get("by") or "random", entry.get("rows"), entry.get("fold")
    with h5_mistakes():
        if part is not None and folds is None:
            raise ConfigError(f"{key}.fold={part}: has no effect without data.folds - set data.folds and data.fold")
        if share is None and part is None:
            return rows
        groups = None if by in ("random", "blocks") else column(by, f"{key}.by")[rows]
        if share is not None:
            if not isinstance(share, Sequence) or not all(isinstance(bound, (int, float)) for bound in share):
                raise ConfigError(f"{key}.rows={share}: must be two shares, such as [0, 0.9], or null")
            chosen = rows_in_share(None, len(rows), share, f"{key}.rows", by, 0, groups)
            rows, groups = rows[chosen], None if groups is None else groups[chosen]
        if part is None:
            return rows
        classes = None if stratify_by is None else column(stratify_by, "data.stratify_by")[rows]
        of = fold_rows(len(rows), folds or 0, fold_repeat, by, groups, classes, stratify_by or "")
    return rows[(of == fold) == (part == "val")]


def joined_values(parts: Sequence[Any], what: str) -> np.ndarray:
    """Return a column of single values in parts, (rows,). Raise ConfigError, beginning with `what`, for a null."""
    import pyarrow as pa
    import pyarrow.types as pt

    if any(part.null_count for part in parts):
        raise ConfigError(f"{what}: some of its values are missing (null)")
    kind = parts[0].type
    if pt.is_nested(kind):
        raise ConfigError(f"{what}: is {kind}, but must have one value per row")
    if pt.is_integer(kind):  # not by Python's numbers: parts with different dtypes would all become floats
        return np.concatenate([part.to_numpy() for part in parts])
    if pt.is_timestamp(kind) and kind.unit == "ns":  # Python's datetime has only microseconds
        return np.concatenate([part.cast(pa.int64()).to_numpy() for part in parts])
    return np.concatenate([np.asarray(part.to_pylist()) for part in parts])


def columns_of(columns: Any) -> list[Any]:
    """Return the columns of an entry of `fields`."""
    return list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else [columns]


def missing_rule(missing: Any) -> Any:
    """Return "nan" for a float NaN, as which Hydra reads data.missing=nan."""
    return "nan" if isinstance(missing, float) and missing != missing else missing


def missing_values(count: int, is_float: bool) -> str:
    """Return the message for missing values in a column, with the remedy for its type."""
    said = f"{count:,} of its values {'is' if count == 1 else 'are'} missing (null)"
    if is_float:
        remedy = "data.missing=nan and, to replace NaN, data/transforms=[to_float,normalize,missing]"
        return f"{said} - set {remedy}; or write a file without these rows"
    return f"{said}, and integers, bools and strings have no NaN - write a file with floats, or without these rows"


def flattened(column: Any) -> Any:
    """Return the values of a chunked column of (nested) lists as one column."""
    import pyarrow as pa

    while is_list(column.type):
        column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    return column


def extremes_of(columns: Iterable[Any]) -> tuple[int, int]:
    """Return the smallest and the largest value of a column of integers, given in parts; (0, 0) if it is empty."""
    import pyarrow.compute as pc

    found = [pc.min_max(column).as_py() for column in columns]
    values = [int(value) for extremes in found for value in extremes.values() if value is not None]
    return min(values, default=0), max(values, default=0)


def leaves(kind: Any) -> int:
    """Return how many columns of a Parquet file contain an arrow type."""
    return sum(leaves(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 1


def is_list(kind: Any) -> bool:
    """Return True for an arrow type of lists."""
    import pyarrow.types as pt

    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def sorted_classes(found: set[Any], rows: int, what: str) -> list[str]:
    """Return the sorted names of classes. Raise ConfigError if almost each row has another string."""
    names = sorted(found - {None})
    if len(names) > max(20, rows // 2):
        raise ConfigError(
            f"{what} has {len(names):,} different strings in {rows:,} rows, too many for classes - for texts, {PACK}"
        )
    return names
