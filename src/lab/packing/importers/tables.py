"""CSV and Parquet: a field for each column, or `--fields a,b,c=x` and `--fields 'pixel*=x'` for several in one.

Strings become classes (sorted, as the attribute `classes`) or, with --as COLUMN=text, UTF-8 of any length. Bytes, and
the {bytes, path} of Hugging Face's image sets, are decoded as in values.py. A column `split` gives the splits. Numbers
of a CSV with a point are float32; a Parquet file says its types itself.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import ConfigError
from lab.packing.importers.base import SPLIT_NAMES, Bad, BadSample, Field, Rows, Source
from lab.packing.importers.images import FileSource, ImageDecoder
from lab.packing.importers.table_groups import Groups
from lab.packing.importers.values import TEXT, decoder, field_of, files_by_split, guess, ranges, stamp
from lab.packing.options import PackOptions


class TableSource(Source):
    slow_random = True
    processes = True

    def __init__(self, groups: Groups, splits: dict[str, Rows], options: PackOptions, where: Path) -> None:
        self.groups, self.splits, self.where = groups, splits, where
        self.slow_random = len(groups.places) > 1
        self.fields: dict[str, Field] = {}
        self._columns: dict[str, list[str]] = {}
        self._decode: dict[str, Any] = {}
        self._classes: dict[str, dict[str, int]] = {}
        self._nan = options.empty == "nan"
        self._empty = self._with_empty_cells() if self._nan else set()
        names = [n for n in groups.schema.names if n != "split"]
        for wanted in options.fields or names:
            found = [n for part in wanted.split(",") for n in fnmatch.filter(groups.schema.names, part)]
            if not found:
                raise ConfigError(f"--fields: {where} has no column {wanted!r}; it has {groups.schema.names}")
            self._columns[wanted] = found
            self.fields[wanted] = self._learn(wanted, found, options)
        self.groups.forget()

    def _learn(self, name: str, columns: list[str], options: PackOptions) -> Field:
        kind, given = self.groups.schema.field(columns[0]).type, options.kinds.get(name)
        import pyarrow.types as pt

        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind):
            if given == "text":
                return Field((None,), np.dtype(np.uint8), TEXT)
            found = sorted(self._distinct(columns[0]))
            self._classes[name] = {value: k for k, value in enumerate(found)}
            return Field((), np.dtype(np.int64), {"classes": found})
        first = self.groups.take(range(1), columns)
        value = first.column(0)[0].as_py()
        raw = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(raw, bytes):
            self._decode[name] = decode = decoder(given or guess(raw, f"{self.where}: {name}"), options, name)
            try:
                return field_of(decode, decode(raw, name), options.variable, name)
            except BadSample as error:
                raise ConfigError(f"{self.where}: the first row says what all are like, but {error}") from None
        if isinstance(value, dict):
            raise ConfigError(f"{self.where}: column {name!r} holds records; choose other columns with --fields")
        values = self._numbers(first, range(1), columns)
        return Field(
            (None,) if options.variable and values.ndim == 2 and len(columns) == 1 else values.shape[1:], values.dtype
        )

    def _with_empty_cells(self) -> set[str]:
        import pyarrow.types as pt

        numbers = [f.name for f in self.groups.schema if pt.is_integer(f.type) or pt.is_floating(f.type)]
        tables = (self.groups.table(g, numbers) for g in range(len(self.groups.places)))
        return {name for table in tables for name in numbers if table.column(name).null_count}

    def _distinct(self, column: str) -> set[str]:
        found: set[Any] = set()
        for g in range(len(self.groups.places)):
            found |= set(self.groups.table(g, [column]).column(column).unique().to_pylist())
        if None in found:
            raise ConfigError(
                f"{self.where}: column {column!r} has empty cells; fill them or leave the column out (--fields)"
            )
        return found

    def _numbers(self, table: Any, rows: Rows, columns: list[str]) -> np.ndarray:
        """(B,) of one column, (B, n) of several or of a column of lists of one length."""
        made = []
        for column in columns:
            values = table.column(column).combine_chunks()
            if values.null_count and not self._nan:
                row = int(rows[int(np.flatnonzero(values.is_null())[0])])
                raise ConfigError(
                    f"{self.where}: column {column!r} is empty in row {row} (rows are counted from 0, without the "
                    "header); --empty nan reads NaN there, --fields leaves the column out"
                )
            if hasattr(values, "flatten") and str(values.type).startswith(("list", "large_list", "fixed_size_list")):
                flat = values.flatten().to_numpy(zero_copy_only=False)
                if len(flat) % len(values) or len({len(v) for v in values}) > 1:
                    raise ConfigError(
                        f"{self.where}: column {column!r} holds lists of different length; --variable keeps them"
                    )
                made.append(flat.reshape(len(values), -1))
            else:
                made.append(values.to_numpy(zero_copy_only=False))
            if column in self._empty:  # an integer column, too: NaN is a float
                made[-1] = made[-1].astype(np.float64)
            if made[-1].dtype.kind not in "biuf":
                raise ConfigError(
                    f"{self.where}: column {column!r} is {values.type}; numbers, strings and bytes are read"
                )
        if self.groups.places[0][1] < 0 and any(m.dtype == np.float64 for m in made):  # a CSV
            made = [m.astype(np.float32) for m in made]
        return made[0] if len(columns) == 1 else np.stack(made, axis=1)

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        table = self.groups.take(rows, list(dict.fromkeys(c for f in fields for c in self._columns[f])))
        out: dict[str, Any] = {}
        bad: dict[int, Bad] = {}
        for name in fields:
            columns, want = self._columns[name], self.fields[name]
            if name in self._decode:
                out[name] = self._decoded(rows, name, table.column(columns[0]).to_pylist(), bad)
            elif name in self._classes:
                out[name] = np.array([self._classes[name][v] for v in table.column(columns[0]).to_pylist()], np.int64)
            elif want.attrs == TEXT:
                cells = table.column(columns[0]).to_pylist()
                out[name] = [np.frombuffer((cell or "").encode(), np.uint8) for cell in cells]
            elif want.ragged:
                out[name] = [np.asarray(cell, want.dtype) for cell in table.column(columns[0]).to_pylist()]
            else:
                out[name] = self._numbers(table, rows, columns)
                if out[name].shape[1:] != want.shape or not np.can_cast(out[name].dtype, want.dtype, "safe"):
                    raise ConfigError(
                        f"{self.where}: column {name!r}, rows from {rows[0]}: {out[name].dtype} of another shape"
                    )
        return self._without(out, bad, len(rows)), list(bad.values())

    def _decoded(self, rows: Rows, name: str, cells: list[Any], bad: dict[int, Bad]) -> list[np.ndarray | None]:
        made: list[np.ndarray | None] = []
        for place, cell in enumerate(cells):
            where = f"{self.where}, row {rows[place]}: {name}"
            try:
                raw = cell.get("bytes") if isinstance(cell, dict) else cell
                if raw is None:
                    raise BadSample(where, "is empty")
                made.append(self._decode[name](raw, where))
                want, got = self.fields[name].shape, made[-1].shape  # type: ignore[union-attr]
                if len(want) != len(got) or any(w not in (None, g) for w, g in zip(want, got, strict=True)):
                    raise ConfigError(
                        f"{where} is {got}, the first is {want}; --size makes images one size, --variable keeps it"
                    )
            except BadSample as error:
                made.append(None)
                bad.setdefault(place, Bad(place, error.name, error.reason))
        return made

    def _without(self, out: dict[str, Any], bad: dict[int, Bad], size: int) -> dict[str, Any]:
        keep = [k for k in range(size) if k not in bad]
        for name, values in out.items():
            if isinstance(values, list):
                kept = [values[k] for k in keep]
                ragged, shape = self.fields[name].ragged, (0, *[s or 0 for s in self.fields[name].shape])
                out[name] = kept if ragged else np.stack(kept) if kept else np.empty(shape, self.fields[name].dtype)
            elif bad:
                out[name] = values[keep]
        return out

    def identity(self) -> Any:
        return stamp(self.groups.files)


def open_table(path: Path, options: PackOptions) -> Source:
    by_split = files_by_split(path, lambda p: p.suffix.lower() in (".csv", ".parquet"))
    sizes, all_files = {}, [f for files in by_split.values() for f in files]
    groups = Groups(all_files)
    if not len(groups):
        raise ConfigError(f"{path} has no rows")
    per_file = np.bincount([f for f, _ in groups.places], np.diff(groups.begins), len(all_files)).astype(int)
    for split, files in by_split.items():
        sizes[split] = int(sum(per_file[all_files.index(f)] for f in files))
    splits = ranges(sizes)
    if "split" in groups.schema.names and list(splits) == [""]:
        splits = by_column(groups, path)
    if options.file_column:
        return image_list(path, groups, splits, options)
    return TableSource(groups, splits, options, path)


def by_column(groups: Groups, path: Path) -> dict[str, Rows]:
    cells = np.array([str(v) for v in groups.take(range(len(groups)), ["split"]).column("split").to_pylist()])
    if unknown := sorted({c for c in cells.tolist() if c.lower() not in SPLIT_NAMES}):
        raise ConfigError(f"{path}: the column split holds {unknown[0]!r}; it may hold {sorted(SPLIT_NAMES)}")
    named = np.array([SPLIT_NAMES[c.lower()] for c in cells.tolist()])
    return {name: np.flatnonzero(named == name) for name in dict.fromkeys(named.tolist())}


def image_list(path: Path, groups: Groups, splits: dict[str, Rows], options: PackOptions) -> FileSource:
    """A table that names image files: the field `image`, and the other columns as targets."""
    column = options.file_column or ""
    if column not in groups.schema.names:
        raise ConfigError(f"--files {column}: {path} has no such column; it has {groups.schema.names}")
    rest = [n for n in groups.schema.names if n not in (column, "split")]
    chosen = {n: n for n in options.fields if n != "image"} if options.fields else {n: n for n in rest}
    whole = range(len(groups))
    targets: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    if chosen:
        table = TableSource(groups, splits, PackOptions(**{**vars(options), "fields": chosen}), path)
        if flat := [n for n, f in table.fields.items() if f.ragged]:
            raise ConfigError(f"{path}: column {flat[0]!r} of different lengths cannot stand beside --files")
        values, _ = table.read(whole, list(chosen))
        targets = {n: (values[n], dict(table.fields[n].attrs)) for n in chosen}
    files = [str(v) for v in groups.take(whole, [column]).column(column).to_pylist()]
    root = path if path.is_dir() else path.parent
    decode = ImageDecoder(options)
    return FileSource(root, files, splits, "image", decode, decode.field, targets)
