"""CSV and Parquet: a field for each column, or `--fields a,b,c=x` and `--fields 'pixel*=x'` for several in one.

Strings become classes (sorted, as the attribute `classes`) or, with --as COLUMN=text, UTF-8 of any length, or, with
--as COLUMN=tokens, the ids that --tokenizer makes of them. Bytes, and
the {bytes, path} of Hugging Face's image sets, are decoded as in values.py. A column `split` gives the splits. Numbers
of a CSV with a point are float32, or float64 where that has fewer digits than were written; a Parquet file says its
types itself. Whole numbers are kept to the last digit, or refused by name.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.importers.attributes import attributes
from h5rows.importers.base import SPLIT_NAMES, Bad, BadSample, Field, Left, Rows, Source
from h5rows.importers.exact import exact, is_list
from h5rows.importers.folders import ALLOW, lies_in
from h5rows.importers.images import FileSource, ImageDecoder, drained
from h5rows.importers.table_groups import Groups
from h5rows.importers.text import tokenizer_file
from h5rows.importers.values import TEXT, decoder, field_of, files_by_split, guess, ranges, stamp
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions


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
        names, known = groups.schema.names, set(groups.schema.names)
        for wanted in options.fields or [n for n in names if n != "split"]:
            found = [wanted] if wanted in known else self._named(wanted, names)
            if not found:
                raise ConfigError(f"--fields: {where} has no column {wanted!r}; it has {names}")
            self._columns[wanted] = found
            self.fields[wanted] = self._learn(wanted, found, options)
        if unknown := sorted(set(options.kinds) - set(self.fields) - known):
            raise ConfigError(f"--as: {where} has no column {unknown[0]!r}; it has {names}")
        self.groups.forget()

    @staticmethod
    def _named(wanted: str, names: Sequence[str]) -> list[str]:
        """a,b and pixel*; a column whose own name holds such a sign is meant by it. None, where a part has none."""
        found = [[part] if part in names else fnmatch.filter(names, part) for part in wanted.split(",")]
        return [n for part in found for n in part] if all(found) else []

    def _learn(self, name: str, columns: list[str], options: PackOptions) -> Field:
        kind, given = self.groups.schema.field(columns[0]).type, options.kinds.get(name)
        import pyarrow.types as pt

        if len(columns) > 1 and not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
            raise ConfigError(f"--fields: {name!r} are {len(columns)} columns, and {columns[0]!r} holds no numbers")
        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind):
            if given == "text":
                self._decode[name] = utf8
                return Field((None,), np.dtype(np.uint8), TEXT)
            if given == "tokens":
                self._decode[name] = tokens = Tokens(options)
                return Field((None,), tokens.dtype, {"tokenizer": options.tokenizer, "vocab_size": tokens.vocab_size})
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
        if given not in (None, "int", "float"):
            raise ConfigError(f"--as {name}={given}: {self.where} holds {kind} there, which is packed as it is")
        size = self._numbers(first, range(1), columns, None).shape[1:]  # before: says what is no number
        dtype = self.groups.number_type(columns, self._nan)
        return Field((None,) if options.variable and is_list(kind) and len(columns) == 1 else size, dtype)

    def as_text(self, column: str) -> str:
        return f", or --as {column}=text keeps it as it is written" if self.groups.is_csv else ""

    def _distinct(self, column: str) -> set[str]:
        found: set[Any] = set()
        for g in range(len(self.groups.places)):
            found |= set(self.groups.table(g, [column]).column(column).unique().to_pylist())
        if None in found:
            raise ConfigError(
                f"{self.where}: column {column!r} has empty cells; fill them or leave the column out (--fields)"
            )
        return found

    def _numbers(self, table: Any, rows: Rows, columns: list[str], dtype: np.dtype | None) -> np.ndarray:
        """(B,) of one column, (B, n) of several or of a column of lists of one length. dtype None: each its own."""
        made = []
        for column in columns:
            cells = table.column(column).combine_chunks()
            if not is_list(cells.type):
                made.append(self._exact(cells, rows, column, dtype))
                continue
            flat = self._flat(cells, rows, column)
            if len({len(v) for v in cells}) > 1:
                raise ConfigError(
                    f"{self.where}: column {column!r} holds lists of different length; --variable keeps them"
                )
            made.append(self._exact(flat, rows, column, dtype).reshape(len(cells), -1))
        if len(columns) == 1:
            return made[0]
        if any(m.ndim > 1 for m in made):
            raise ConfigError(f"{self.where}: {columns} cannot go into one field: lists are among them")
        return np.stack(made, axis=1)

    def _flat(self, cells: Any, rows: Rows, column: str) -> Any:
        """The values of lists, one after the other; a list that is missing, or has gaps, is refused."""
        gaps = cells.flatten().null_count and not self._nan
        for place, cell in enumerate(cells if cells.null_count or gaps else ()):
            if not cell.is_valid or (gaps and cell.values.null_count):
                what = "has an empty place in the list" if cell.is_valid else "is empty"
                raise ConfigError(
                    f"{self.where}: column {column!r} {what} of row {int(rows[place])} (rows are counted from 0); fill "
                    "it, or leave the column out (--fields)"
                )
        return cells.flatten()

    def _exact(self, cells: Any, rows: Rows, column: str, dtype: np.dtype | None) -> np.ndarray:
        """Numbers as this type, which must hold each whole number among them; an empty cell is NaN, or refused."""
        if cells.null_count and not self._nan:
            row = int(rows[int(cells.is_null().to_numpy(zero_copy_only=False).argmax())])
            raise ConfigError(
                f"{self.where}: column {column!r} is empty or NaN in row {row} (rows are counted from 0, without the "
                "header); --empty nan reads NaN there, --fields leaves the column out"
            )
        try:
            return exact(cells, dtype)
        except ValueError as error:
            raise ConfigError(
                f"{self.where}: column {column!r}: {error}; choose columns with --fields{self.as_text(column)}"
            ) from None

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
            elif want.ragged:
                lists = table.column(columns[0]).combine_chunks()
                flat = self._exact(self._flat(lists, rows, columns[0]), rows, columns[0], want.dtype)
                out[name] = np.split(flat, np.cumsum([len(v) for v in lists])[:-1])
            else:
                out[name] = self._numbers(table, rows, columns, want.dtype)
                if out[name].shape[1:] != want.shape:
                    got = out[name].shape[1:]
                    raise ConfigError(f"{self.where}: column {name!r}, rows from {rows[0]}: {got}, not {want.shape}")
        return self._without(out, bad, len(rows)), list(bad.values())

    def single_columns(self) -> list[str]:
        return [name for name, columns in self._columns.items() if columns == [name]]

    def lost(self) -> list[Left]:
        return drained(self._decode.values())

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


def utf8(cell: str, name: object) -> np.ndarray:
    return np.frombuffer(cell.encode(), np.uint8)


class Tokens:
    """A text -> the ids of --tokenizer."""

    def __init__(self, options: PackOptions) -> None:
        self.tokenizer = tokenizer_file(options.tokenizer, options.length)
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.dtype = np.min_scalar_type(self.vocab_size - 1)

    def __call__(self, cell: str, name: object) -> np.ndarray:
        ids = self.tokenizer.encode(cell).ids
        if not ids:
            raise BadSample(name, "is empty")
        return np.array(ids, self.dtype)


def open_table(path: Path, options: PackOptions) -> Source:
    account = Account()
    by_split = files_by_split(path, (".csv", ".tsv", ".parquet"), options.external, account)
    sizes, all_files = {}, [f for files in by_split.values() for f in files]
    groups = Groups(all_files, options)
    if not len(groups):
        raise ConfigError(f"{path} has no rows")
    per_file = np.bincount([f for f, _ in groups.places], np.diff(groups.begins), len(all_files)).astype(int)
    for split, files in by_split.items():
        sizes[split] = int(sum(per_file[all_files.index(f)] for f in files))
    splits = ranges(sizes)
    if "split" in groups.schema.names and list(splits) == [""]:
        splits = by_column(groups, path)
    made: Source = (
        TableSource(groups, splits, options, path)
        if not options.file_column
        else image_list(path, groups, splits, options)
    )
    made.account = account
    take_metadata(made, groups, account)
    return made


def take_metadata(source: Source, groups: Groups, account: Account) -> None:
    """What Parquet files say of the whole, if all say it, and of their columns."""
    first, *others = groups.metadata
    alike = {name: value for name, value in first.items() if all(same(value, other.get(name)) for other in others)}
    for name in dict.fromkeys(name for each in groups.metadata for name in each if name not in alike):
        account.leave("attributes", name, "differs between the files")
    source.group_attrs = {"": attributes(alike, "the file", account)} if alike else {}
    if isinstance(source, TableSource):
        found = {name: attributes(groups.column_metadata(name), name, account) for name in source.single_columns()}
        source.field_attrs = {(split, name): own for split in source.splits for name, own in found.items() if own}


def same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(np.array_equal(value, other))


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
    if column in options.fields and column != "image":
        raise ConfigError(f"--fields {column}: of --files {column} comes the field image; write image, or image=NAME")
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
    if options.external != ALLOW:
        top = os.path.realpath(root)
        if out := next((name for name in files if not lies_in(root / name, top)), None):
            raise ConfigError(
                f"{path}: column {column!r} names {out!r}, outside of {root}; --external allow reads what lies "
                "elsewhere"
            )
    decode = ImageDecoder(options)
    return FileSource(root, files, splits, "image", decode, decode.field, targets)
