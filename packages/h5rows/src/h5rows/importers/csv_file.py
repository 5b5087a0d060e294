"""CSV files as one arrow table.

The first line names the columns, a comma separates them (in .tsv a tab), the text is UTF-8, unless an option says
otherwise. What looks as if it were meant otherwise is refused, with the option that decides.

All cells are read as text. A column of numbers is int64, or uint64, float32 or float64; all others are text.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need, printable, report
from h5rows.options import PackOptions

ZERO_FIRST = r"^[+-]?0[0-9]"  # a postal code, a key
DIGITS = r"^[0-9]+$"
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
WITH_COMMA = r"^[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?$"  # 1,5 and 1.234,56 and 1,234.56
TYPES = {"int": ("int64", "uint64"), "float": ("float64",)}  # by what --as says; the first that has all cells
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), 1 << 24  # float32 rounds numbers between these to 24 bits
EMPTY = ("", "#n/a", "#na", "n/a", "na", "nan", "-nan", "null")  # in a column of numbers
HEADER = "header=True takes it for names, header=False for a sample"


def read_csv_files(files: list[Path], options: PackOptions) -> tuple[Any, list[int]]:
    """(the cells of all of them, how many rows each has)."""
    import pyarrow as pa

    texts = [read_csv(file, options) for file in files]
    for file, table in zip(files, texts, strict=True):
        if table.schema.names != texts[0].schema.names:
            raise ConfigError(f"{file} has other columns than {files[0]}: {table.schema.names}")
    together = pa.concat_tables(texts).combine_chunks()
    names = together.schema.names
    if options.empty not in ("stop", "nan") and not any(holds(together.column(name), options.empty) for name in names):
        raise ConfigError(
            f"empty={options.empty!r}: no cell of {files[0]} holds it; give nan, or what stands for no value"
        )
    table = pa.table({name: typed(files[0], name, together.column(name).combine_chunks(), options) for name in names})
    if options.header is None:
        check_header(files[0], table, options)
    return table, [len(each) for each in texts]


def read_csv(file: Path, options: PackOptions) -> Any:
    """A table of strings."""
    import pyarrow as pa

    arrow = need("pyarrow.csv", f"reading {file}", "pyarrow")
    separator = options.separator or ("\t" if file.suffix.lower() == ".tsv" else ",")
    encoding, raw = options.encoding or "utf-8", file.read_bytes().rstrip(b"\r\n")
    reading = arrow.ReadOptions(use_threads=False, autogenerate_column_names=options.header is False, encoding=encoding)
    parsing = arrow.ParseOptions(delimiter=separator, newlines_in_values=True, escape_char=options.escape or False)
    try:
        check_quotes(file, raw.decode(encoding) if b'"' in raw or options.escape else "", separator, options.escape)
        names = arrow.open_csv(pa.BufferReader(raw), reading, parsing).schema.names
        as_text = arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        parsing.ignore_empty_lines = len(names) > 1  # of a single column each is an empty cell
        table = arrow.read_csv(pa.BufferReader(raw), reading, parsing, as_text)
    except ConfigError:
        raise
    except Exception as error:  # pyarrow raises its own, OSError, LookupError, UnicodeError
        what = f"{file} cannot be read as CSV: {error}; columns are separated by {separator!r}, its text is {encoding}"
        unless = "unless separator= and encoding= say otherwise; a cell that holds the separator stands in quotes"
        raise ConfigError(f"{what}, {unless}") from None
    if not len(table):
        raise ConfigError(f"{file} has no rows")
    check_names(file, names)
    others = ";\t|" + " :" * (len(names) == 1)
    if not options.separator and (found := next((s for name in names for s in others if s in name), None)):
        what = f"{file}: a column's name holds {found!r}"
        raise ConfigError(f"{what}; separator={found!r} if it separates columns, separator={separator!r} if not")
    return table


def check_quotes(file: Path, text: str, separator: str, escape: str | None) -> None:
    """What follows a closing quote is glued to the cell by arrow: a quote was escaped in another way."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        lines = csv.reader(
            io.StringIO(text.replace("\0", " "), newline=""), delimiter=separator, escapechar=escape, strict=True
        )
        for cells in lines:
            if escape and "N" in cells and f"{escape}N" in text:
                what = f"{file}, line {lines.line_num}: {escape}N is no value to some programs, and read as the name N"
                raise ConfigError(f"{what}; write an empty cell there")
    except csv.Error as error:
        what = f"{file}, line {lines.line_num}: a cell in quotes goes on behind its closing quote ({error})"
        remedy = "escape='\\\\' reads a backslash before a quote; without, a quote within quotes is doubled"
        raise ConfigError(f"{what}; {remedy}") from None
    finally:
        csv.field_size_limit(limit)


def holds(cells: Any, text: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(pc.utf8_trim_whitespace(cells), text)).as_py())


def typed(file: Path, name: str, cells: Any, options: PackOptions) -> Any:
    """A column as it is written, (rows,) strings, as numbers if all its cells are some. Empty ones are null, but for
    those of texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = options.kinds.get(name)
    if given in ("text", "tokens"):
        return cells
    none, trimmed = pa.scalar(None, pa.string()), pc.utf8_trim_whitespace(cells)
    blank = pc.is_in(trimmed, pa.array(["", *[options.empty] * (options.empty not in ("stop", "nan"))]))
    names = pc.if_else(blank, none, cells)
    if given == "class":
        return names
    empty = pc.or_(blank, pc.is_in(pc.utf8_lower(trimmed), pa.array(EMPTY)))
    filled = trimmed.filter(pc.invert(empty))
    if not len(filled):
        return pa.nulls(len(cells))
    zero_first = filled.filter(pc.match_substring_regex(filled, ZERO_FIRST))
    if given is None and len(zero_first):
        if not options.quiet and pc.all(pc.match_substring_regex(filled, DIGITS)).as_py():
            why = f"since {zero_first[0].as_py()!r} begins with a zero; as int or float it would be numbers"
            report(f"{name}: text, {why}")
        return names
    numbers = pc.if_else(empty, none, trimmed)
    if options.decimal == ",":
        point = filled.filter(pc.match_substring(filled, "."))
        if len(point) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
            what = (
                f"{file}: column {name!r} holds {point[0].as_py()!r}, and decimal=',' says that the comma is the point"
            )
            raise ConfigError(f"{what}: write marks of thousands without, or kinds={{{name!r}: 'text'}} keeps texts")
        if not len(point):
            numbers = pc.replace_substring(numbers, ",", ".")
    for kind in TYPES.get(given or "", ("int64", "uint64", "float64")):
        try:
            made = numbers.cast(kind)
        except pa.ArrowInvalid:
            continue
        return narrowed(check_digits(file, name, numbers, made)) if kind == "float64" else made
    if given in ("int", "float"):
        other = next(c for c in filled.to_pylist() if not is_number(c.replace(options.decimal, ".")))
        what = f"kinds={{{name!r}: {given!r}}}: column {name!r} of {file} holds {other!r}"
        raise ConfigError(f"{what}; empty={other!r} reads that as no value")
    comma = filled.filter(pc.match_substring(filled, ","))
    if len(comma) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
        what = f"{file}: column {name!r} holds {comma[0].as_py()!r}: decimal=',' reads numbers with a comma as point"
        raise ConfigError(f"{what} (write marks of thousands without), kinds={{{name!r}: 'text'}} keeps texts")
    word = cells.filter(pc.and_(empty, pc.invert(blank)))
    if len(word) and options.empty == "stop":
        what = f"{file}: column {name!r} holds {word[0].as_py()!r}, no value or a name"
        raise ConfigError(f"{what}: empty={word[0].as_py()!r} reads no value, kinds={{{name!r}: 'class'}} a name")
    return pc.if_else(empty, none, cells)


def is_number(cell: str) -> bool:
    try:
        return float(cell) is not None and "_" not in cell
    except ValueError:
        return False


def check_digits(file: Path, name: str, cells: Any, floats: Any) -> Any:
    """float64 numbers, if no cell is another one as such: too large for it, or whole with too many digits."""
    import pyarrow as pa

    values = np.nan_to_num(floats.to_numpy(zero_copy_only=False), nan=0, posinf=np.inf, neginf=-np.inf)
    for cell in cells.filter(pa.array(np.abs(values) >= 2.0**53)).to_pylist():
        if np.isinf(float(cell)):
            lost = "inf" not in cell.lower()
        else:
            lost = bool(WHOLE.fullmatch(cell)) and int(float(cell)) != int(cell.partition(".")[0])
        if lost:
            what = f"{file}: column {name!r}: no type holds {cell} and the other numbers exactly"
            raise ConfigError(f"{what}; kinds={{{name!r}: 'text'}} keeps it as it is written")
    return floats


def narrowed(cells: Any) -> Any:
    """An arrow array of float64 as float32, if that is written with the same digits: 0.1 is, 0.123456789 is not."""
    import pyarrow as pa

    values = cells.to_numpy(zero_copy_only=False)  # NaN where it is empty
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    size = np.abs(values)
    written = pa.array(narrow).cast(pa.string()).cast(pa.float64()).to_numpy()
    same = (narrow == values) | ((size >= SMALLEST) & (size < LARGEST) & (written == values)) | np.isnan(values)
    return cells.cast(pa.float32()) if same.all() else cells


def check_header(file: Path, table: Any, options: PackOptions) -> None:
    """Names are no numbers, and are certain where one stands above numbers, or an option names it."""
    import pyarrow.types as pt

    asked = {part for key in (*options.fields, *options.kinds) for part in (key, *key.split(","))}
    certain = bool({*asked, options.file_column, "split"} & set(table.schema.names))
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        try:
            float(name.replace(",", "."))
        except ValueError:
            certain = certain or not (pt.is_string(kind) or pt.is_null(kind) or name.strip().lower() in EMPTY)
            continue
        raise ConfigError(f"{file}: its first line may be names or a sample: it holds {printable(name)!r}; {HEADER}")
    if not certain:
        raise ConfigError(f"{file}: its first line may be names or a sample: no column holds numbers; {HEADER}")


def check_names(file: Path, names: list[str]) -> None:
    if twice := next((n for n in names if names.count(n) > 1), None):
        what = f"{file} has two columns {twice!r}"
        raise ConfigError(f"{what}; give each a name of its own, or header=False if the first line is a sample")
