"""Rows of CSV and Parquet files by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import ConfigError
from lab.packing.importers.base import Rows, need


class Groups:
    """The row groups of Parquet files, or a CSV as one of them."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.places: list[tuple[int, int]] = []  # (file, group in it)
        schemas: list[Any] = []
        sizes: list[int] = []
        self._csv: dict[int, Any] = {}
        self._last: tuple[Any, Any] = (None, None)
        pq = need("pyarrow.parquet", "pyarrow", "tables", f"reading {files[0]}")
        for k, file in enumerate(files):
            if file.suffix.lower() == ".csv":
                table = read_csv(file)
                self._csv[len(sizes)] = table
                self.places.append((k, -1))
                sizes.append(len(table))
                schema = table.schema
            else:
                try:
                    meta = pq.read_metadata(file)
                except Exception as error:  # pyarrow raises its own and OSError
                    raise ConfigError(f"{file} cannot be read as Parquet: {error}") from None
                schema = meta.schema.to_arrow_schema()
                self.places += [(k, g) for g in range(meta.num_row_groups)]
                sizes += [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            schemas.append(schema)
            if not schema.equals(schemas[0]):
                raise ConfigError(f"{file} has other columns than {files[0]}: {schema.names} and {schemas[0].names}")
        self.schema = schemas[0]
        self.begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.begins[-1])

    def table(self, group: int, columns: Sequence[str]) -> Any:
        """The last group read is kept: blocks lie one after the other."""
        if group in self._csv:
            return self._csv[group]
        if self._last[0] == (key := (group, tuple(columns))):
            return self._last[1]
        import pyarrow.parquet as pq

        file, number = self.places[group]
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

    def forget(self) -> None:
        """Before a fork: the parent's Parquet tables stay with the parent."""
        self._last = (None, None)


def read_csv(file: Path) -> Any:
    csv = need("pyarrow.csv", "pyarrow", "tables", f"reading {file}")
    try:
        return csv.read_csv(file, read_options=csv.ReadOptions(use_threads=False)).combine_chunks()
    except Exception as error:  # pyarrow raises its own and OSError
        raise ConfigError(f"{file} cannot be read as CSV: {error}") from None
