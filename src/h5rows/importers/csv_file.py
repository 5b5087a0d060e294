"""CSV files as one arrow table. What they do not say of themselves, their encoding, their separator, whether the first
line names the columns, is taken where all lines agree, and else refused with the option that says it.

All cells are read as text. A column's type is the first of TYPES that has all its cells, or text.
"""

from __future__ import annotations

import csv as python_csv
import io
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import printable
from h5rows.importers.exact import narrowed
from h5rows.packing.options import PackOptions

HEAD = 1 << 20  # characters in which the separator is looked for
SEPARATORS = (",", ";", "\t", "|")
IN_ONE_COLUMN = (" ", ":", "^", "~", "&", *SEPARATORS)
ZERO_FIRST = r"^[+-]?0[0-9xX]"  # a postal code, a key
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
WITH_COMMA = r"^[+-]?[\d.,]*\d[\d.,]*$"  # 1,5 and 1.234,56 and 1,234.56
PLAIN_NAME = re.compile(r"[^\W\d]\w*([ -]\w+){0,3}")
TYPES = ("int64", "uint64", "float64", "bool", "date32", "timestamp[ns]")
EMPTY = ("", "#n/a", "#na", "n/a", "na", "nan", "-nan", "null")  # in a column of numbers
NO_NAMES = {*EMPTY, "none", "inf", "infinity", "true", "false"}


def read_csv_files(files: list[Path], options: PackOptions) -> tuple[Any, list[int]]:
    """(the cells of all of them, how many rows each has)."""
    import pyarrow as pa

    texts = [CsvFile(file, options).texts() for file in files]
    for file, table in zip(files, texts, strict=True):
        if table.schema.names != texts[0].schema.names:
            raise ConfigError(f"{file} has other columns than {files[0]}: {table.schema.names}")
    together = pa.concat_tables(texts).combine_chunks()
    names = together.schema.names
    table = pa.table({name: typed(files[0], name, together.column(name).combine_chunks(), options) for name in names})
    if options.header is None and (why := doubt(table)):
        raise ConfigError(
            f"{files[0]}: its first line may be names or a sample: {printable(why)}; --header takes it for names, "
            "--no-header for a sample"
        )
    return table, [len(each) for each in texts]


class CsvFile:
    def __init__(self, file: Path, options: PackOptions) -> None:
        self.file, self.options = file, options
        self._csv = need("pyarrow.csv", f"reading {file}", "pyarrow")
        self.raw = file.read_bytes()
        self.encoding = options.encoding or "utf-8"
        self.check_encoding()
        self.separator = options.separator or self.find_separator()
        self._wrong: list[Any] = []

    def texts(self) -> Any:
        """A table of strings."""
        import pyarrow as pa

        try:
            names = self.read(self._csv.open_csv).schema.names
            table = self.read(self._csv.read_csv, column_types=dict.fromkeys(names, pa.string()))
        except Exception as error:  # pyarrow raises its own and OSError
            if self._wrong:
                row = self._wrong[0]
                cells = f"{row.actual_columns} cells, the header {row.expected_columns}"
                raise ConfigError(
                    f"{self.file}: line {row.number} has {cells}: {row.text[:60]!r}; a cell that holds "
                    f"{self.separator!r} stands in quotes; if another sign separates the columns, --separator names it"
                ) from None
            raise ConfigError(f"{self.file} cannot be read as CSV: {error}") from None
        if not len(table.schema.names) or not len(table):
            raise ConfigError(f"{self.file} has no rows")
        check_names(self.file, table.schema.names)
        self.check_one_column(table)
        return table

    def read(self, reader: Callable[..., Any], **convert: Any) -> Any:
        import pyarrow as pa

        def stop(row: Any) -> str:
            self._wrong.append(row)
            return "error"

        names = {"autogenerate_column_names": self.options.header is False}
        return reader(
            pa.BufferReader(self.raw),
            self._csv.ReadOptions(use_threads=False, encoding=self.encoding, **names),
            self._csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=b'"' in self.raw, invalid_row_handler=stop
            ),
            self._csv.ConvertOptions(**convert),
        )

    def check_encoding(self) -> None:
        try:
            self.raw.decode(self.encoding)
        except LookupError:
            raise ConfigError(f"--encoding {self.encoding}: Python knows no such one; try latin-1 or utf-16") from None
        except UnicodeDecodeError as error:
            line = self.raw.count(b"\n", 0, error.start) + 1
            near = self.raw[max(0, error.start - 8) : error.start + 8]
            raise ConfigError(
                f"{self.file}: line {line} is not {self.encoding} ({near!r}); --encoding says what the file is: "
                "latin-1, cp1252, utf-16"
            ) from None

    def find_separator(self) -> str:
        """The one that cuts all lines into as many cells, more than one."""
        if self.file.suffix.lower() == ".tsv":
            return "\t"
        records = {sign: self.records(sign) for sign in SEPARATORS}
        sizes = {sign: {len(record) for record in found if record} for sign, found in records.items()}
        agree = [sign for sign, found in sizes.items() if len(found) == 1 and found != {1}]
        if len(agree) == 1:
            return agree[0]
        if not agree and (len(records[","][0]) > 1 or not any(len(found[0]) > 1 for found in records.values())):
            return ","
        may = agree or [sign for sign, found in records.items() if len(found[0]) > 1]
        listed = " or ".join(f"{sign!r} ({len(records[sign][0])} columns)" for sign in may)
        raise ConfigError(f"{self.file}: columns may be separated by {listed}; --separator says by which")

    def records(self, separator: str) -> list[list[str]]:
        """The first ones; at least one."""
        with io.TextIOWrapper(io.BytesIO(self.raw), "utf-8-sig" if self.encoding == "utf-8" else self.encoding) as text:
            head = text.read(HEAD)
            whole = not text.read(1)
        try:
            found = [r for r in python_csv.reader(io.StringIO(head, newline=""), delimiter=separator) if r]
        except python_csv.Error:
            return [[""]]
        return (found if whole or len(found) < 3 else found[:-1]) or [[""]]

    def check_one_column(self, table: Any) -> None:
        if len(table.schema.names) > 1:
            return
        lines = [record[0] for record in self.records(self.separator) if record]
        for sign in () if self.options.separator else IN_ONE_COLUMN:
            sizes = {len(line.split() if sign == " " else line.split(sign)) for line in lines}
            if len(sizes) == 1 and sizes != {1}:
                raise ConfigError(
                    f"{self.file} has one column, of which each line holds {sign!r}; --separator {sign!r} if it "
                    f"separates columns, --separator {self.separator!r} if not"
                )
        with io.TextIOWrapper(io.BytesIO(self.raw.rstrip(b"\r\n \t")), self.encoding, newline="") as text:
            blank = next((k for k, record in enumerate(python_csv.reader(text)) if not record), None)
        if blank is not None:
            raise ConfigError(
                f"{self.file} has one column, and line {blank + 1} is blank, which may be an empty cell; fill or "
                "remove it"
            )


def typed(file: Path, name: str, cells: Any, options: PackOptions) -> Any:
    """A column as it is written, (rows,) strings, as the first of TYPES that has all its cells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = options.kinds.get(name)
    if given in ("text", "tokens", "class"):
        return cells
    trimmed = pc.utf8_trim_whitespace(cells)
    empty = pc.is_in(pc.utf8_lower(trimmed), pa.array(EMPTY))
    filled = trimmed.filter(pc.invert(empty))
    if not len(filled):
        return pa.nulls(len(cells))
    if given is None and (zero_first := filled.filter(pc.match_substring_regex(filled, ZERO_FIRST))):
        if not options.quiet:
            why = f"since {zero_first[0].as_py()!r} begins with a zero (--as {name}=int or float: its numbers)"
            print(f"{printable(name)}: text, {printable(why)}")
        return cells
    trimmed = pc.if_else(empty, pa.scalar(None, pa.string()), trimmed)
    if options.decimal == ",":
        point = pc.any(pc.match_substring(filled, ".")).as_py()  # 1.000 is not 1 where numbers have a comma
        trimmed = cells if point else pc.replace_substring(trimmed, ",", ".")
    for kind in {"int": ["int64"], "float": ["float64"]}.get(given or "", TYPES):
        try:
            made = trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
        if kind != "float64":
            return made
        if lost := next(changed(trimmed, made), None):
            raise ConfigError(
                f"{file}: column {name!r}: no type holds {lost} and the other numbers exactly; --as {name}=text keeps "
                "it as it is written"
            )
        return narrowed(made)
    if given in ("int", "float"):
        raise ConfigError(f"--as {name}={given}: column {name!r} of {file} holds other cells")
    comma = filled.filter(pc.match_substring(filled, ","))
    if len(comma) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
        raise ConfigError(
            f"{file}: column {name!r} holds {comma[0].as_py()!r}: --decimal , reads numbers with a comma for the point "
            f"(write marks of thousands without), --as {name}=text keeps texts"
        )
    return cells


def changed(cells: Any, floats: Any) -> Iterator[str]:
    """Cells that are other numbers as float64: those too large for it, and whole ones with too many digits."""
    import pyarrow as pa

    values = np.nan_to_num(floats.to_numpy(zero_copy_only=False), nan=0, posinf=np.inf, neginf=-np.inf)
    for cell in cells.filter(pa.array(np.abs(values) >= 2.0**53)).to_pylist():
        if np.isinf(float(cell)):
            lost = "inf" not in cell.lower()
        else:
            lost = bool(WHOLE.fullmatch(cell)) and int(float(cell)) != int(cell.partition(".")[0])
        if lost:
            yield cell


def doubt(table: Any) -> str:
    """Why the names of a table may be its first sample, or "". They are certain where a column of numbers has no number
    at its head. A first line of words may be a sample as well as names: then they have to look like names, none of
    which comes again below."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    names = [name.strip() for name in table.schema.names]
    texts = [pt.is_string(t) or pt.is_null(t) for t in table.schema.types]
    certain = any(not text and is_word(name) for name, text in zip(names, texts, strict=True))
    if numbers := [name for name in names if NUMBER.fullmatch(name)]:
        rising = all(name.isdigit() for name in numbers) and all(
            int(b) == int(a) + 1 for a, b in itertools.pairwise(numbers)
        )
        return "" if certain and rising else f"it holds the number {numbers[0]!r}"
    if certain:
        return ""
    if odd := next((name for name in names if not PLAIN_NAME.fullmatch(name) or len(name) > 40), None):
        return f"{odd[:40]!r} is no usual name, and no column holds numbers"
    for k, name in enumerate(table.schema.names):
        if texts[k] and pc.any(pc.equal(table.column(k).cast("string"), name)).as_py():
            return f"{name!r} comes again below, and no column holds numbers"
    return ""


def is_word(name: str) -> bool:
    return bool(re.match(r"[^\W\d]|_", name)) and name.lower() not in NO_NAMES


def check_names(file: Path, names: list[str]) -> None:
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise ConfigError(
            f"{file} has two columns {twice!r}; give each a name of its own, or --no-header if the first line is a "
            "sample"
        )
