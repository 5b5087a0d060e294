"""Read rows of CSV and Parquet files by number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need
from h5rows.importers.csv_file import check_names, read_csv_files
from h5rows.options import PackOptions
from h5rows.source import Rows


class Groups:
    """The row groups of Parquet files, or CSV files as one group.

    file_rows: number of rows per file. is_csv: True if the files are CSV, whose cells are in memory."""

    def __init__(self, files: list[Path], options: PackOptions) -> None:
        self.files, self.is_csv = files, files[0].suffix.lower() != ".parquet"
        if other := next((file for file in files if (file.suffix.lower() != ".parquet") != self.is_csv), None):
            raise ConfigError(f"{files[0]} and {other} are of two formats; move one away, or give a pattern")
        self._places: list[tuple[int, int]] = []  # (file, number in it) of each group
        self._last: tuple[Any, Any] = (None, None)
        pq = need("pyarrow.parquet", f"reading {files[0]}", "pyarrow")
        if self.is_csv:
            self._csv, self.file_rows = read_csv_files(files, options)
            self.schema, sizes = self._csv.schema, [len(self._csv)]
        else:
            self.file_rows, sizes = [], []
            for k, file in enumerate(files):
                try:
                    meta = pq.read_metadata(file)
                except Exception as error:  # pyarrow raises OSError and its own errors
                    raise ConfigError(f"{file} cannot be read as Parquet: {error}") from None
                schema = without_views(meta.schema.to_arrow_schema().empty_table()).schema
                check_names(file, schema.names)
                if k == 0:
                    self.schema = schema
                elif not schema.equals(self.schema):
                    here, there = ({f"{f.name} {f.type}" for f in s} for s in (schema, self.schema))
                    if here == there:
                        what = f"{file} has the columns of {files[0]} in another order, or marked as never null"
                        raise ConfigError(f"{what}; write them alike")
                    what = f"{file} has other columns than {files[0]}"
                    raise ConfigError(f"{what}: {sorted(here - there)} instead of {sorted(there - here)}")
                self.file_rows.append(meta.num_rows)
                self._places += [(k, g) for g in range(meta.num_row_groups)]
                sizes += [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
        self.begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.begins) - 1

    @property
    def rows(self) -> int:
        """Return the number of rows of all groups."""
        return int(self.begins[-1])

    def table(self, group: int, columns: Sequence[str]) -> Any:
        """Return these columns of a group. The last group stays in memory, as blocks are read in order."""
        if self.is_csv:
            return self._csv.select(list(columns))
        if self._last[0] != (key := (group, tuple(columns))):
            import pyarrow.parquet as pq

            file, number = self._places[group]
            with pq.ParquetFile(self.files[file], page_checksum_verification=True) as opened:
                table = opened.read_row_group(number, columns=list(columns), use_threads=False)
            self._last = key, without_views(table)
        return self._last[1]

    def take(self, rows: Rows, columns: Sequence[str]) -> Any:
        """Return these rows of these columns as an arrow table."""
        import pyarrow as pa

        where = np.asarray(rows)
        of = np.searchsorted(self.begins, where, side="right") - 1
        tables = ((g, self.table(g, columns).select(list(columns))) for g in np.unique(of))
        return pa.concat_tables([table.take(where[of == g] - self.begins[g]) for g, table in tables])

    def number_type(self, columns: Sequence[str], gaps: bool) -> np.dtype:
        """Return the type that represents all cells of these columns. gaps: empty cells are possible."""
        kinds = [number_type(self.schema.field(c).type) for c in columns]
        whole = any(kind.kind != "f" for kind in kinds)
        if gaps and whole and any(has_gaps(self.table(g, columns), columns) for g in range(len(self))):
            kinds.append(np.dtype(np.float64))
        return np.result_type(*kinds)

    def forget(self) -> None:
        """Release the cached table. Call it before a fork."""
        self._last = (None, None)


def without_views(table: Any) -> Any:
    """Return an arrow table with large strings and bytes in place of string and binary views, for which pyarrow lacks
    some functions."""
    import pyarrow as pa

    plain = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    for k, field in enumerate(table.schema):
        if kind := plain.get(str(field.type)):
            table = table.set_column(k, field.with_type(kind), table.column(k).cast(kind))
    return table


def has_gaps(table: Any, columns: Sequence[str]) -> bool:
    """Return True if a cell of these columns is empty."""
    cells = [table.column(c).combine_chunks() for c in columns]
    return any(c.null_count or (is_list(c.type) and c.flatten().null_count) for c in cells)


def is_list(kind: Any) -> bool:
    """Return True for an arrow type of lists."""
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def number_type(kind: Any) -> np.dtype:
    """Return the NumPy type of an arrow type, or of the values of its lists. Raise ValueError if it is not numeric."""
    import pyarrow as pa
    import pyarrow.types as pt

    inner = kind.value_type if is_list(kind) else kind
    if not (pt.is_integer(inner) or pt.is_floating(inner) or pt.is_boolean(inner) or pt.is_null(inner)):
        raise ValueError(f"is {kind}; numbers, strings and bytes are read")
    # not to_pandas_dtype, for which pyarrow before 26 needs pandas
    return np.dtype(np.float32) if pt.is_null(inner) else pa.array([], inner).to_numpy(zero_copy_only=False).dtype


def exact(cells: Any, dtype: np.dtype | None) -> np.ndarray:
    """Return an arrow array as this type (None: its own); empty cells are NaN. Raise ValueError if a whole number might
    change, which is possible from 2^24 (float32) or 2^53 (float64)."""
    import pyarrow as pa

    dtype = dtype or number_type(cells.type)
    try:
        return cells.cast(pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    except pa.ArrowNotImplementedError:
        raise ValueError(f"is {cells.type}; numbers, strings and bytes are read") from None
    except pa.ArrowInvalid as error:
        number = re.search(r"-?\d+", str(error))
        lost = number[0] if number else "a number"
        raise ValueError(f"{lost} would lose digits as {dtype}, the type of this field with all its cells") from None
