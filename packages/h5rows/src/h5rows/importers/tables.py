"""Read CSV and Parquet: one field per column, or `--fields a,b,c=x` and `--fields 'pixel*=x'` for stacked columns.

Strings become classes: the attribute `classes` has the sorted names, and a missing class is -1 (attribute
`missing_value`). With --as COLUMN=text they become UTF-8 of any length, with --as COLUMN=tokens the ids of --tokenizer.
Bytes, and the {bytes, path} records of Hugging Face image sets, are decoded as in values.py. A column `split` contains
the splits. Metadata of a Parquet file (`pandas`, `huggingface`) is not copied.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, override
from h5rows.importers.csv_file import is_number
from h5rows.importers.folders import ALLOW, lies_in
from h5rows.importers.images import ImageDecoder
from h5rows.importers.table_groups import Groups, exact, is_list
from h5rows.importers.text import tokenizer_file
from h5rows.importers.values import TEXT, Decode, decoder, field_of, files_by_split, guess
from h5rows.options import FOR_CSV, PackOptions
from h5rows.source import SPLIT_NAMES, Bad, BadSample, Field, Rows, SampleSource, first_readable, ranges

# numbers, dates, times, ranges, amounts; text of only digits is allowed, as it may be codes
LIKE_NUMBERS = re.compile(
    r"[\W\d_]*\d[\W\d_]*|0x[0-9a-f]+|\d[\d.]*e[+-]?\d+|\d{4}-\d\d-\d\d[t ].*|.*\d:\d\d.*", re.I | re.S
)
FEW_CLASSES = 100
MISSING_CLASS = -1


class TableSource(SampleSource):
    """Rows of tables. A field is numbers, classes (strings), or encoded cells, which are decoded one by one."""

    remedy = "; size= resizes all images, variable=True keeps their sizes"

    def __init__(self, groups: Groups, splits: dict[str, Rows], options: PackOptions, where: Path) -> None:
        self.groups, self.splits, self.options, self.where = groups, splits, options, where
        self.slow_random = len(groups) > 1
        self.fields: dict[str, Field] = {}
        self._columns: dict[str, list[str]] = {}
        self._decode: dict[str, Any] = {}
        self._classes: dict[str, dict[str | None, int]] = {}
        self._nan = options.empty != "stop"
        if not groups.is_csv:
            options.check_for(FOR_CSV, f"{where}, a Parquet file,")
            if options.empty not in ("stop", "nan"):
                raise ConfigError(
                    f"empty={options.empty!r}: {where} is Parquet, which marks empty cells itself; use nan"
                )
        names, files = groups.schema.names, options.file_column
        self._names = names
        usual = [name for name in names if name not in ("split", files)]
        if files is not None:
            usual.insert(0, "image")
            if files not in names:
                raise ConfigError(f"file_column={files!r}: {where} has no such column; it has {names}")
            if files != "image" and files in options.fields:
                what = f"fields={files!r}: file_column={files!r} creates the field image"
                raise ConfigError(f"{what}; write image, or image=NAME")
            if files != "image" and "image" in names:
                raise ConfigError(
                    f"file_column={files!r} creates a field image, but {where} has a column of this name; rename it"
                )
        for wanted in options.fields or usual:
            self._columns[wanted] = [files] if files and wanted == "image" else self._named(wanted)
            self.fields[wanted] = self._learn(wanted, self._columns[wanted])
        if unknown := sorted(set(options.kinds) - {*self.fields, *names}):
            raise ConfigError(f"kinds=: {where} has no column {unknown[0]!r}; it has {names}")
        self.groups.forget()

    def _named(self, wanted: str) -> list[str]:
        """Return the columns of a field: those of exactly this name, of a,b or of a pattern such as pixel*."""
        names = self._names
        parts = wanted.split(",")
        found = [[part] if part in names else fnmatch.filter(names, part) for part in parts]
        if wanted not in names and not all(found):
            lacking = next(part for part, columns in zip(parts, found) if not columns)
            raise ConfigError(f"fields=: {self.where} has no column {lacking!r}; it has {names}")
        return [wanted] if wanted in names else [n for part in found for n in part]

    def _learn(self, name: str, columns: list[str]) -> Field:
        import pyarrow.types as pt

        kind, given = self.groups.schema.field(columns[0]).type, self.options.kinds.get(name)
        if len(columns) > 1 and not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
            raise ConfigError(f"fields=: {name!r} has {len(columns)} columns, but {columns[0]!r} is not of numbers")
        if columns == [self.options.file_column]:
            return self._learn_encoded(name, lambda _: NamedImages(self.options, self.where))
        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind):
            if given == "text":
                self._decode[name] = utf8
                return Field((None,), np.dtype(np.uint8), TEXT)
            if given == "tokens":
                self._decode[name] = tokens = Tokens(self.options)
                attrs = {"tokenizer": self.options.tokenizer, "vocab_size": tokens.vocab_size}
                return Field((None,), tokens.dtype, attrs)
            return self._learn_classes(name, columns[0], check=given is None and not pt.is_dictionary(kind))
        of_hugging_face = pt.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if pt.is_binary(kind) or pt.is_large_binary(kind) or of_hugging_face:
            what = f"{self.where}: {name}"
            return self._learn_encoded(name, lambda raw: decoder(given or guess(raw, what), self.options, name))
        if given not in (None, "int", "float"):
            raise ConfigError(
                f"kinds={{{name!r}: {given!r}}}: {self.where} has {kind} there, which is packed unchanged"
            )
        first = self.groups.take(range(1), columns)
        size = self._numbers(first, range(1), columns, None).shape[1:]  # first, because it raises for other types
        dtype = self.groups.number_type(columns, self._nan)
        return Field((None,) if self.options.variable and is_list(kind) and len(columns) == 1 else size, dtype)

    def _learn_encoded(self, name: str, decoder_for: Callable[[Any], Decode]) -> Field:
        """Return the field of encoded cells. decoder_for: returns the decoder, given the first readable cell."""
        columns = self._columns[name]

        def learn(row: int) -> Field:
            cell = self.groups.take(range(row, row + 1), columns).column(0)[0].as_py()
            self._decode[name] = decode = decoder_for(self._raw(row, name, cell))
            return field_of(decode, self._decoded(row, name, cell), self.options.variable, name)

        return first_readable(self.groups.rows, learn, f"{self.where}: column {columns[0]!r}")

    def _learn_classes(self, name: str, column: str, check: bool) -> Field:
        found = self._distinct(column)
        if check:
            self._check_classes(name, found - {None})
        names = sorted(found - {None})
        self._classes[name] = {value: k for k, value in enumerate(names)}
        if None not in found:
            return Field((), np.dtype(np.int64), {"classes": names})
        self._classes[name][None] = MISSING_CLASS
        return Field((), np.dtype(np.int64), {"classes": names, "missing_value": np.int64(MISSING_CLASS)})

    def _distinct(self, column: str) -> set[Any]:
        found: set[Any] = set()
        for g in range(len(self.groups)):
            found |= set(self.groups.table(g, [column]).column(column).unique().to_pylist())
        if None in found and not self._nan:
            what = f"{self.where}: column {column!r} has empty cells"
            skips = override("missing", {"FIELD": "drop"})
            remedy = f"empty='nan' makes them class {MISSING_CLASS} ({skips} skips such rows)"
            raise ConfigError(f"{what}; {remedy}, fields= can exclude the column")
        return found

    def _check_classes(self, name: str, found: set[str]) -> None:
        """Raise ConfigError if cells look like numbers or free text, which should not become classes."""
        ways = f"kinds={{{name!r}: 'class'}} makes each different cell a class, kinds={{{name!r}: 'text'}} keeps text"
        where, cells = f"{self.where}: column {name!r}", sorted(found)
        like = [cell for cell in cells if LIKE_NUMBERS.fullmatch(cell.strip())]
        if like and not all(map(str.isdigit, cells)):
            plain = [cell for cell in cells if is_number(cell)]
            odd = next((cell for cell in cells if not is_number(cell)), None)
            if odd is None:
                said, way = f"{like[0]!r}, a number or a name", f"kinds={{{name!r}: 'float'}} a number, "
            elif plain:
                said, way = f"the number {plain[0]!r} and {odd!r}", f"empty={odd!r} reads it as a missing value, "
            else:
                said, way = f"{like[0]!r}, neither a number nor a name", ""
            raise ConfigError(f"{where} contains {said}: {way * self.groups.is_csv}{ways}")
        if len(found) > max(FEW_CLASSES, self.groups.rows // 2):
            texts = f"has {len(found):,} different texts in {self.groups.rows:,} rows"
            raise ConfigError(f"{where} {texts}: {ways}, fields= can exclude it")

    def _numbers(self, table: Any, rows: Rows, columns: list[str], dtype: np.dtype | None) -> np.ndarray:
        """Return (B,) for one column, (B, n) for several or for lists of equal length. dtype: None keeps the types."""
        made = []
        for column in columns:
            flat, lengths = self._cells(table, rows, column, dtype)
            if len(set(lengths)) > 1:
                raise ConfigError(f"{self.where}: {column!r} has lists of different length; variable=True keeps them")
            made.append(flat.reshape(len(lengths), -1) if lengths else flat)
        if len(columns) == 1:
            return made[0]
        if any(m.ndim > 1 for m in made):
            raise ConfigError(f"{self.where}: {columns} cannot be stacked, as some contain lists")
        return np.stack(made, axis=1)

    def _cells(self, table: Any, rows: Rows, column: str, dtype: np.dtype | None) -> tuple[np.ndarray, list[int]]:
        """Return (numbers of this type, lengths of lists or []). Raise ConfigError if a whole number would change, if a
        list is missing, or if a cell is empty and the option `empty` is "stop"."""
        cells = table.column(column).combine_chunks()
        lists = is_list(cells.type)
        flat = cells.flatten() if lists else cells
        if (lists and cells.null_count) or (flat.null_count and not self._nan):
            row = next(
                int(rows[place])
                for place, cell in enumerate(cells)
                if not cell.is_valid or (lists and not self._nan and cell.values.null_count)
            )
            what = f"{self.where}: column {column!r} is empty or NaN in row {row} (from 0, without the header)"
            raise ConfigError(f"{what}; empty='nan' reads missing numbers as NaN, fields= can exclude the column")
        try:
            return exact(flat, dtype), [len(cell) for cell in cells] if lists else []
        except ValueError as error:
            as_text = f", or kinds={{{column!r}: 'text'}} keeps its text" if self.groups.is_csv else ""
            what = f"{self.where}: column {column!r}: {error}"
            raise ConfigError(f"{what}; choose columns with fields={as_text}") from None

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """Return these fields of these rows, and the samples that cannot be read."""
        table = self.groups.take(rows, list(dict.fromkeys(c for f in fields for c in self._columns[f])))
        encoded = {f: table.column(self._columns[f][0]).to_pylist() for f in fields if f in self._decode}
        one = lambda k: {f: self._decoded(int(rows[k]), f, encoded[f][k]) for f in encoded}  # noqa: E731
        out, bad = self.collect(rows, list(encoded), one)
        keep = np.delete(np.arange(len(rows)), [b.place for b in bad])
        for name in fields:
            columns, want = self._columns[name], self.fields[name]
            if name in self._classes:
                cells = table.column(columns[0]).to_pylist()
                out[name] = np.array([self._classes[name][cells[k]] for k in keep], np.int64)
            elif name not in encoded and want.ragged:
                flat, lengths = self._cells(table, rows, columns[0], want.dtype)
                lists = np.split(flat, np.cumsum(lengths)[:-1])
                out[name] = [lists[k] for k in keep]
            elif name not in encoded:
                values = self._numbers(table, rows, columns, want.dtype)
                if values.shape[1:] != want.shape:
                    got = values.shape[1:]
                    raise ConfigError(f"{self.where}: column {name!r}, rows from {rows[0]}: {got}, not {want.shape}")
                out[name] = values[keep]
        return out, bad

    def _raw(self, row: int, name: str, cell: Any) -> Any:
        """Return the bytes of a cell, or a file name. Raise BadSample if it is empty."""
        raw = cell.get("bytes") if isinstance(cell, dict) else cell
        if raw is None:
            raise BadSample(f"{self.name_of(row)}: {name}", "is empty")
        return raw

    def _decoded(self, row: int, name: str, cell: Any) -> np.ndarray:
        made: np.ndarray = self._decode[name](self._raw(row, name, cell), f"{self.name_of(row)}: {name}")
        return made

    def name_of(self, row: int) -> str:
        """Return file and row of a sample, for messages."""
        return f"{self.where}, row {row}"


def utf8(cell: str, name: object) -> np.ndarray:
    """Return the UTF-8 bytes of a cell, (n,) uint8."""
    return np.frombuffer(cell.encode(), np.uint8)


class NamedImages(ImageDecoder):
    """Decode the image of a file name relative to the folder of the table."""

    def __init__(self, options: PackOptions, table: Path) -> None:
        super().__init__(options)
        self.column, self.external = options.file_column, options.external
        self.table, self.root = table, table if table.is_dir() else table.parent

    def __call__(self, data: Any, name: object) -> np.ndarray:
        """Decode the image with this file name. Raise ConfigError if it is outside of the folder."""
        path = os.path.join(self.root, str(data))
        if self.external != ALLOW and not lies_in(path, os.path.realpath(self.root)):
            problem = f"{self.table}: column {self.column!r} names {str(data)!r}, outside of {self.root}"
            raise ConfigError(f"{problem}; external='allow' reads it")
        return super().__call__(path, data)


class Tokens:
    """Convert a text to the ids of --tokenizer."""

    def __init__(self, options: PackOptions) -> None:
        self.tokenizer = tokenizer_file(options.tokenizer, options.length)
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.dtype = np.min_scalar_type(self.vocab_size - 1)

    def __call__(self, cell: str, name: object) -> np.ndarray:
        """Return the ids of a text, (n,). Raise BadSample if there are none."""
        ids = self.tokenizer.encode(cell).ids
        if not ids:
            raise BadSample(name, "is empty")
        return np.array(ids, self.dtype)


def open_table(path: Path, options: PackOptions) -> TableSource:
    """Open CSV or Parquet files. Raise ConfigError if they have no rows."""
    account = Account()
    by_split = files_by_split(path, (".csv", ".tsv", ".parquet"), options.external, account)
    groups = Groups([f for files in by_split.values() for f in files], options)
    if not groups.rows:
        raise ConfigError(f"{path} has no rows")
    rows_of = dict(zip(groups.files, groups.file_rows, strict=True))
    splits = ranges({split: sum(rows_of[f] for f in files) for split, files in by_split.items()})
    if "split" in groups.schema.names and list(splits) == [""]:
        splits = by_column(groups, path)
    made = TableSource(groups, splits, options, path)
    made.account = account
    return made


def by_column(groups: Groups, path: Path) -> dict[str, Rows]:
    """Return {split: rows} by the cells of the column `split`."""
    cells = np.array([str(v) for v in groups.take(range(groups.rows), ["split"]).column("split").to_pylist()])
    if unknown := sorted({c for c in cells.tolist() if c.lower() not in SPLIT_NAMES}):
        raise ConfigError(f"{path}: the column split contains {unknown[0]!r}; it must be one of {sorted(SPLIT_NAMES)}")
    named = np.array([SPLIT_NAMES[c.lower()] for c in cells.tolist()])
    return {name: np.flatnonzero(named == name) for name in dict.fromkeys(named.tolist())}
