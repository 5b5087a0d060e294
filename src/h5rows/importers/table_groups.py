"""Rows of CSV and Parquet files by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import Rows
from h5rows.importers.csv_file import check_names, read_csv_files
from h5rows.importers.exact import is_list, number_type
from h5rows.packing.options import PackOptions


class Groups:
    """The row groups of Parquet files, or a CSV as one of them."""

    def __init__(self, files: list[Path], options: PackOptions) -> None:
        self.files = files
        self.places: list[tuple[int, int]] = []  # (file, group in it)
        schemas: list[Any] = []
        sizes: list[int] = []
        self.metadata: list[dict[str, Any]] = []  # of each file
        self._csv: dict[int, Any] = {}  # file -> its table
        self._last: tuple[Any, Any] = (None, None)
        pq = need("pyarrow.parquet", f"reading {files[0]}", "pyarrow")
        if texts := [k for k, file in enumerate(files) if file.suffix.lower() != ".parquet"]:
            table, rows = read_csv_files([files[k] for k in texts], options)
            begins = np.cumsum([0, *rows])
            self._csv = {k: table.slice(begin, size) for k, begin, size in zip(texts, begins, rows)}
        for k, file in enumerate(files):
            if k in self._csv:
                schema, found = self._csv[k].schema, [len(self._csv[k])]
            else:
                try:
                    meta = pq.read_metadata(file)
                except Exception as error:  # pyarrow raises its own and OSError
                    raise ConfigError(f"{file} cannot be read as Parquet: {error}") from None
                schema = meta.schema.to_arrow_schema()
                found = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            self.places += [(k, g) for g in range(len(found))]
            sizes += found
            schemas.append(schema)
            self.metadata.append(plain_metadata(schema.metadata))
            check_names(file, schema.names)
            if not schema.equals(schemas[0]):
                here, there = ([f"{f.name} {f.type}" for f in s] for s in (schema, schemas[0]))
                raise ConfigError(
                    f"{file} has other columns than {files[0]}: {sorted(set(here) - set(there))} for "
                    f"{sorted(set(there) - set(here))}"
                )
        self.schema = schemas[0]
        self.begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.begins[-1])

    def table(self, group: int, columns: Sequence[str]) -> Any:
        """The last group read is kept: blocks lie one after the other."""
        file, number = self.places[group]
        if file in self._csv:
            return self._csv[file]
        if self._last[0] == (key := (group, tuple(columns))):
            return self._last[1]
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.files[file]) as opened:
            table = opened.read_row_group(number, columns=list(columns), use_threads=False)
        self._last = (key, table)
        return table

    def take(self, rows: Rows, columns: Sequence[str]) -> Any:
        import pyarrow as pa

        where = np.asarray(rows)
        of = np.searchsorted(self.begins, where, side="right") - 1
        parts = [
            self.table(g, columns).select(list(columns)).take(where[of == g] - self.begins[g]) for g in np.unique(of)
        ]
        return pa.concat_tables(parts)

    def number_type(self, columns: Sequence[str], gaps: bool) -> np.dtype:
        """The type that a field of these columns takes, so that none of its cells changes. gaps: some may be empty."""
        kinds = [number_type(self.schema.field(c).type) for c in columns]
        whole = [c for c, kind in zip(columns, kinds, strict=True) if kind.kind != "f"]
        if gaps and whole and any(has_gaps(self.table(g, columns), columns) for g in range(len(self.places))):
            kinds.append(np.dtype(np.float64))
        return np.result_type(*kinds)

    @property
    def is_csv(self) -> bool:
        return bool(self._csv)

    def column_metadata(self, column: str) -> dict[str, Any]:
        return plain_metadata(self.schema.field(column).metadata)

    def forget(self) -> None:
        """Before a fork: the parent's Parquet tables stay with the parent."""
        self._last = (None, None)


def has_gaps(table: Any, columns: Sequence[str]) -> bool:
    cells = [table.column(c).combine_chunks() for c in columns]
    return any(c.null_count or (is_list(c.type) and c.flatten().null_count) for c in cells)


OF_THE_FORMAT = ("ARROW:", "PARQUET:")  # what the types say


def plain_metadata(found: dict[bytes, bytes] | None) -> dict[str, Any]:
    """Texts by their names; bytes that are no UTF-8 as numbers."""
    made: dict[str, Any] = {}
    for key, value in (found or {}).items():
        name = key.decode("utf-8", "backslashreplace")
        if not name.startswith(OF_THE_FORMAT):
            try:
                made[name] = value.decode()
            except UnicodeDecodeError:
                made[name] = np.frombuffer(value, np.uint8)
    return made
