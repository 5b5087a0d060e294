"""A CSV file as an arrow table. What it does not say of itself, its encoding, its separator, whether its first line
names the columns, is taken where all its lines agree, and else refused with the option that says it."""

from __future__ import annotations

import codecs
import csv as python_csv
import io
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import printable
from h5rows.importers.exact import restore_whole_numbers
from h5rows.packing.options import PackOptions

HEAD = 1 << 20  # characters in which the separator is looked for
PIECE = 1 << 24  # bytes that are decoded at a time
SEPARATORS = (",", ";", "\t", "|")
IN_ONE_COLUMN = (" ", ":", "^", "~", "&", *SEPARATORS)
ZERO_FIRST = re.compile(r"\s*[+-]?0[0-9xX]")
MAY_BE_ZERO_FIRST = re.compile(rb"(?:\A|[^0-9A-Za-z.])0[0-9xX]")
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
WITH_COMMA = r"^\s*[+-]?[\d.,]*\d[\d.,]*\s*$"  # 1,5 and 1.234,56 and 1,234.56
PLAIN_NAME = re.compile(r"[^\W\d]\w*([ -]\w+){0,3}")
NO_NAMES = {"na", "n/a", "nan", "null", "none", "inf", "infinity", "true", "false", ""}
KINDS = {"text": "string", "tokens": "string", "class": "string", "int": "int64", "float": "float64"}


def read_csv_files(files: list[Path], options: PackOptions) -> dict[Path, Any]:
    """Their tables. A column that is text in one of them, as its numbers begin with zeros, is so in all."""
    read: dict[Path, tuple[Any, list[str]]] = {}
    for file in files:
        opened = CsvFile(file, options)
        read[file] = opened.table(), opened.zero_first
    texts = {name: "text" for _, names in read.values() for name in names}
    again = replace(options, kinds={**texts, **options.kinds})
    return {f: t if set(names) == set(texts) else CsvFile(f, again).table() for f, (t, names) in read.items()}


class CsvFile:
    def __init__(self, file: Path, options: PackOptions) -> None:
        self.file, self.options = file, options
        self._csv = need("pyarrow.csv", f"reading {file}", "pyarrow")
        self.raw = file.read_bytes()
        self.encoding = options.encoding or "utf-8"
        self.check_encoding()
        self.separator = options.separator or self.find_separator()
        self.zero_first: list[str] = []
        self._wrong: list[Any] = []

    def table(self) -> Any:
        kinds = {name: KINDS[kind] for name, kind in self.options.kinds.items() if kind in KINDS}
        try:
            table = self.read(column_types=kinds).combine_chunks()
            if not len(table.schema.names) or not len(table):
                raise ConfigError(f"{self.file} has no rows")
            check_names(self.file, table.schema.names)
            self.check_one_column(table)
            self.check_header(table)
            self.zero_first = self.find_zero_first(table, kinds)
            if self.zero_first:
                texts = dict.fromkeys(self.zero_first, "string")
                table = self.read(column_types={**kinds, **texts}).combine_chunks()
            self.check_commas(table, kinds)
            return restore_whole_numbers(table, self.as_text)
        except ConfigError:
            raise
        except Exception as error:  # pyarrow raises its own and OSError
            if self._wrong:
                row = self._wrong[0]
                cells = f"{row.actual_columns} cells, the header {row.expected_columns}"
                raise ConfigError(
                    f"{self.file}: line {row.number} has {cells}: {row.text[:60]!r}; a cell that holds "
                    f"{self.separator!r} stands in quotes; if another sign separates the columns, --separator names it"
                ) from None
            raise ConfigError(f"{self.file} cannot be read as CSV: {error}") from None

    def read(self, **convert: Any) -> Any:
        import pyarrow as pa

        def stop(row: Any) -> str:
            self._wrong.append(row)
            return "error"

        names = {"autogenerate_column_names": self.options.header is False}
        return self._csv.read_csv(
            pa.BufferReader(self.raw),
            self._csv.ReadOptions(use_threads=False, encoding=self.encoding, **names),
            self._csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=b'"' in self.raw, invalid_row_handler=stop
            ),
            self._csv.ConvertOptions(decimal_point=self.options.decimal, **convert),
        )

    def as_text(self, column: str) -> Any:
        kinds = {column: "string"}
        return self.read(include_columns=[column], column_types=kinds, strings_can_be_null=True).column(0)

    def check_encoding(self) -> None:
        try:
            decoder = codecs.getincrementaldecoder(self.encoding)()
        except LookupError:
            raise ConfigError(f"--encoding {self.encoding}: Python knows no such one; try latin-1 or utf-16") from None
        for begin in range(0, max(1, len(self.raw)), PIECE):
            try:
                decoder.decode(self.raw[begin : begin + PIECE], begin + PIECE >= len(self.raw))
            except UnicodeDecodeError as error:
                line = self.raw.count(b"\n", 0, begin + error.start) + 1
                near = self.raw[begin:][max(0, error.start - 8) : error.start + 8]
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

    def check_header(self, table: Any) -> None:
        """Names are certain where a column of numbers has no number at its head. A first line of words may be a sample
        as well as names: then they have to look like names, none of which comes again below."""
        if self.options.header is not None:
            return
        why = doubt(table)
        if why:
            raise ConfigError(
                f"{self.file}: its first line may be names or a sample: {printable(why)}; --header takes it for names, "
                "--no-header for a sample"
            )

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

    def find_zero_first(self, table: Any, kinds: dict[str, str]) -> list[str]:
        """Columns of what looks like numbers, of which one begins with a zero: a postal code, a key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not MAY_BE_ZERO_FIRST.search(self.raw):
            return []
        found = []
        for column in table.schema:
            if column.name in kinds or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
                continue
            written = self.as_text(column.name)
            match = pc.match_substring_regex(written, f"^{ZERO_FIRST.pattern}")
            if pc.any(match).as_py():
                found.append(column.name)
                first = written.filter(match)[0].as_py()
                if not self.options.quiet:
                    name = printable(column.name)
                    print(f"{name}: text, since {first!r} begins with a zero (--as {name}=int or float: its numbers)")
        return found

    def check_commas(self, table: Any, kinds: dict[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        for column in table.schema:
            if column.name in kinds or not pa.types.is_string(column.type):
                continue
            cells = table.column(column.name)
            cells = cells.filter(pc.not_equal(cells, ""))
            if len(cells) and pc.all(pc.match_substring_regex(cells, WITH_COMMA)).as_py():
                comma = cells.filter(pc.match_substring(cells, ","))
                if len(comma):
                    raise ConfigError(
                        f"{self.file}: column {column.name!r} holds {comma[0].as_py()!r}: --decimal , reads numbers "
                        f"with a comma for the point (write marks of thousands without), --as {column.name}=text keeps "
                        "texts"
                    )


def doubt(table: Any) -> str:
    """Why the names of a table may be its first sample, or ""."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    names = [name.strip() for name in table.schema.names]
    texts = [pt.is_string(t) or pt.is_large_string(t) or pt.is_null(t) for t in table.schema.types]
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
