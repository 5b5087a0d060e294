"""Read CSV files as one arrow table.

By default the first line contains the column names, columns are separated by commas (tabs in .tsv), and the text is
UTF-8. A file that could be meant differently raises ConfigError, which names the option that decides.

All cells are read as text. A column of numbers becomes int64, uint64, float32 or float64; other columns stay text.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need, printable, report
from h5rows.options import PackOptions

ZERO_FIRST = r"^[+-]?0[0-9]"  # a postal code, a key
DIGITS = r"^[0-9]+$"
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER = (
    r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity)$"  # arrow reads 0xff and nan(1), too
)
WITH_COMMA = r"^[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?$"  # 1,5 and 1.234,56 and 1,234.56
# types for --as int and float; the first one that fits all cells
TYPES = {"int": ("int64", "uint64"), "float": ("float64",)}
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), 1 << 24  # float32 rounds numbers between these to 24 bits
MOST_BLOCK = 1 << 28  # bytes that arrow parses at a time; a longer cell cannot be read
EMPTY = ("", "#n/a", "#na", "n/a", "na", "nan", "-nan", "null")  # empty cells in a column of numbers
HEADER = "header=True reads it as names, header=False as a sample"


def read_csv_files(files: list[Path], options: PackOptions) -> tuple[Any, list[int]]:
    """Return (one table of all files, the number of rows of each)."""
    import pyarrow as pa

    texts = [read_csv(file, options) for file in files]
    for file, table in zip(files, texts, strict=True):
        if table.schema.names != texts[0].schema.names:
            raise ConfigError(f"{file} has other columns than {files[0]}: {table.schema.names}")
    together = pa.concat_tables(texts).combine_chunks()
    names = together.schema.names
    if options.empty not in ("stop", "nan") and not any(holds(together.column(name), options.empty) for name in names):
        raise ConfigError(
            f"empty={options.empty!r}: no cell of {files[0]} contains it; give nan, or the text of missing values"
        )
    table = pa.table({name: typed(files[0], name, together.column(name).combine_chunks(), options) for name in names})
    if options.header is None:
        check_header(files[0], table, options)
    return table, [len(each) for each in texts]


def read_csv(file: Path, options: PackOptions) -> Any:
    """Return the cells of a file as a table of strings. Raise ConfigError if it cannot be read or is ambiguous."""
    import pyarrow as pa

    arrow = need("pyarrow.csv", f"reading {file}", "pyarrow")
    separator = options.separator or ("\t" if file.suffix.lower() == ".tsv" else ",")
    encoding, raw = options.encoding or "utf-8", file.read_bytes()
    reading = arrow.ReadOptions(use_threads=False, autogenerate_column_names=options.header is False)
    if raw.startswith(b"\x1f\x8b"):
        raise ConfigError(f"{file} is gzip; decompress it first")
    parsing = arrow.ParseOptions(delimiter=separator, newlines_in_values=True, escape_char=options.escape or False)
    try:
        raw = (raw.decode(encoding).encode() if options.encoding else raw).rstrip(b"\r\n")
        if not raw:
            raise ConfigError(f"{file} is empty")
        if options.header is not False and not re.search(rb"[\r\n]", raw):
            raise ConfigError(f"{file} has no rows, only a line of column names; header=False reads that as a sample")
        reading.block_size = min(max(1 << 20, len(raw)), MOST_BLOCK)
        check_quotes(file, raw.decode() if b'"' in raw or options.escape else "", separator, options.escape)
        names = arrow.open_csv(pa.BufferReader(raw), reading, parsing).schema.names
        as_text = arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        parsing.ignore_empty_lines = len(names) > 1  # with a single column, an empty line is an empty cell
        table = arrow.read_csv(pa.BufferReader(raw), reading, parsing, as_text)
    except ConfigError:
        raise
    except Exception as error:  # pyarrow raises its own, OSError, LookupError, UnicodeError
        what = f"{file} cannot be read as CSV: {error}; expected columns separated by {separator!r} and {encoding} text"
        unless = "which separator= and encoding= change; a cell that contains the separator must be in quotes"
        raise ConfigError(f"{what}, {unless}") from None
    check_names(file, names)
    others = ";\t|" + " :" * (len(names) == 1)
    if not options.separator and (found := next((s for name in names for s in others if s in name), None)):
        what = f"{file}: a column name contains {found!r}"
        raise ConfigError(f"{what}; separator={found!r} if it separates columns, separator={separator!r} if not")
    return table


def check_quotes(file: Path, text: str, separator: str, escape: str | None) -> None:
    """Raise ConfigError if text follows a closing quote, which arrow would append: quotes are escaped differently."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        lines = csv.reader(
            io.StringIO(text.replace("\0", " "), newline=""), delimiter=separator, escapechar=escape, strict=True
        )
        for cells in lines:
            if escape and "N" in cells and f"{escape}N" in text:
                what = f"{file}, line {lines.line_num}: {escape}N means a missing value in some programs, here a name"
                raise ConfigError(f"{what}; write an empty cell there")
    except csv.Error as error:
        said = f"text follows the closing quote of a cell, or a quote is not closed ({error})"
        remedy = "escape='\\\\' reads a backslash before a quote; by default, quotes inside quotes are doubled"
        raise ConfigError(f"{file}, line {lines.line_num}: {said}; {remedy}") from None
    finally:
        csv.field_size_limit(limit)


def holds(cells: Any, text: str) -> bool:
    """Return True if a cell is this text, without surrounding spaces."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(pc.utf8_trim_whitespace(cells), text)).as_py())


def typed(file: Path, name: str, cells: Any, options: PackOptions) -> Any:
    """Return a column of strings, (rows,), as numbers if all its cells are numbers. Empty cells become null, except in
    columns of text. Raise ConfigError if the column is ambiguous."""
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
            why = f"because {zero_first[0].as_py()!r} begins with a zero; as int or float it is numbers"
            report(f"{name}: text, {why}")
        return names
    numbers, plain = pc.if_else(empty, none, trimmed), filled
    if options.decimal == ",":
        point = filled.filter(pc.match_substring(filled, "."))
        if len(point) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
            what = f"{file}: column {name!r} contains {point[0].as_py()!r}, but decimal=',' expects commas"
            raise ConfigError(f"{what}: remove thousands separators, or use kinds={{{name!r}: 'text'}}")
        if not len(point):
            numbers, plain = (pc.replace_substring(cells, ",", ".") for cells in (numbers, filled))
    types = TYPES.get(given or "", ("int64", "uint64", "float64"))
    for kind in types if pc.all(pc.match_substring_regex(plain, NUMBER)).as_py() else ():
        try:
            made = numbers.cast(kind)
        except pa.ArrowInvalid:
            continue
        return narrowed(check_digits(file, name, numbers, made)) if kind == "float64" else made
    if given in ("int", "float"):
        digits = dict(zip(filled.to_pylist(), plain.to_pylist(), strict=True))  # cell -> with a decimal point
        what = f"kinds={{{name!r}: {given!r}}}: column {name!r} of {file} contains"
        if words := [cell for cell, number in digits.items() if not is_number(number)]:
            raise ConfigError(f"{what} {words[0]!r}; empty={words[0]!r} reads it as a missing value")
        odd = [cell for cell in digits if not re.fullmatch("-?[0-9]+", cell)] or [max(digits, key=len)]
        raise ConfigError(f"{what} {odd[0]!r}, which cannot be read as int64; kinds={{{name!r}: 'float'}} reads it")
    comma = filled.filter(pc.match_substring(filled, ","))
    if len(comma) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
        what = f"{file}: column {name!r} contains {comma[0].as_py()!r}: decimal=',' reads decimal commas"
        raise ConfigError(f"{what} (remove thousands separators), kinds={{{name!r}: 'text'}} keeps the text")
    word = cells.filter(pc.and_(empty, pc.invert(blank)))
    if len(word) and options.empty == "stop":
        what = f"{file}: column {name!r} contains {word[0].as_py()!r}, a missing value or a name"
        raise ConfigError(f"{what}: empty={word[0].as_py()!r} reads the first, kinds={{{name!r}: 'class'}} the second")
    return pc.if_else(empty, none, cells)


def is_number(cell: str) -> bool:
    """Return True if a cell is a number in decimal digits, or infinite."""
    return re.search(NUMBER, cell.strip()) is not None


def check_digits(file: Path, name: str, cells: Any, floats: Any) -> Any:
    """Return the float64 numbers. Raise ConfigError if a cell is too large or too small, or a whole number with too
    many digits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = np.nan_to_num(floats.to_numpy(zero_copy_only=False), nan=0, posinf=np.inf, neginf=-np.inf)
    zeros = cells.filter(pa.array(values == 0))
    small = zeros.filter(pc.match_substring_regex(zeros, "^[^eE]*[1-9]"))  # 1e-400
    for cell in pa.concat_arrays([small, cells.filter(pa.array(np.abs(values) >= 2.0**53))]).to_pylist():
        if float(cell) == 0:
            lost = True
        elif np.isinf(float(cell)):
            lost = "inf" not in cell.lower()
        else:
            lost = bool(WHOLE.fullmatch(cell)) and int(float(cell)) != int(cell.partition(".")[0])
        if lost:
            what = f"{file}: column {name!r}: no type can represent {cell} and the other numbers exactly"
            raise ConfigError(f"{what}; kinds={{{name!r}: 'text'}} keeps its text")
    return floats


def narrowed(cells: Any) -> Any:
    """Return float64 cells as float32 if they print with the same digits (0.1 does, 0.123456789 does not)."""
    import pyarrow as pa

    values = cells.to_numpy(zero_copy_only=False)  # empty cells are NaN
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    size = np.abs(values)
    written = pa.array(narrow).cast(pa.string()).cast(pa.float64()).to_numpy()
    same = (narrow == values) | ((size >= SMALLEST) & (size < LARGEST) & (written == values)) | np.isnan(values)
    return cells.cast(pa.float32()) if same.all() else cells


def check_header(file: Path, table: Any, options: PackOptions) -> None:
    """Raise ConfigError if the first line could be a sample: a name is a number, or no column has numbers below."""
    import pyarrow.types as pt

    asked = {part for key in (*options.fields, *options.kinds) for part in (key, *key.split(","))}
    certain = bool({*asked, options.file_column, "split"} & set(table.schema.names))
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        try:
            float(name.replace(",", "."))
        except ValueError:
            certain = certain or not (pt.is_string(kind) or pt.is_null(kind) or name.strip().lower() in EMPTY)
            continue
        raise ConfigError(f"{file}: its first line may be names or a sample: it contains {printable(name)!r}; {HEADER}")
    if not certain:
        raise ConfigError(f"{file}: its first line may be names or a sample: no column contains numbers; {HEADER}")


def check_names(file: Path, names: list[str]) -> None:
    """Raise ConfigError if two columns have the same name."""
    if twice := next((n for n, count in Counter(names).items() if count > 1), None):
        what = f"{file} has two columns {twice!r}"
        raise ConfigError(f"{what}; rename one, or give header=False if the first line is a sample")
