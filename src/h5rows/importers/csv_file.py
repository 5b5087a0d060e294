"""CSV files as one arrow table.

The first line names the columns, a comma separates them (in .tsv a tab), the text is UTF-8, unless an option says
otherwise. What looks as if it were meant otherwise is refused, with the option that decides.

All cells are read as text. A column of numbers is int64, or uint64, float32 or float64; all others are text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need, printable
from h5rows.importers.exact import narrowed
from h5rows.packing.options import PackOptions

ZERO_FIRST = r"^[+-]?0[0-9xX]"  # a postal code, a key
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
WITH_COMMA = r"^[+-]?[\d.,]*\d[\d.,]*$"  # 1,5 and 1.234,56 and 1,234.56
TYPES = {"int": ("int64", "uint64"), "float": ("float64",)}  # by what --as says; the first that has all cells
EMPTY = ("", "#n/a", "#na", "n/a", "na", "nan", "-nan", "null")  # in a column of numbers
HEADER = "--header takes it for names, --no-header for a sample"


def read_csv_files(files: list[Path], options: PackOptions) -> tuple[Any, list[int]]:
    """(the cells of all of them, how many rows each has)."""
    import pyarrow as pa

    texts = [read_csv(file, options) for file in files]
    for file, table in zip(files, texts, strict=True):
        if table.schema.names != texts[0].schema.names:
            raise ConfigError(f"{file} has other columns than {files[0]}: {table.schema.names}")
    together = pa.concat_tables(texts).combine_chunks()
    names = together.schema.names
    table = pa.table({name: typed(files[0], name, together.column(name).combine_chunks(), options) for name in names})
    if options.header is None:
        check_header(files[0], table, options)
    return table, [len(each) for each in texts]


def read_csv(file: Path, options: PackOptions) -> Any:
    """A table of strings."""
    import pyarrow as pa

    csv = need("pyarrow.csv", f"reading {file}", "pyarrow")
    separator = options.separator or ("\t" if file.suffix.lower() == ".tsv" else ",")
    encoding, raw = options.encoding or "utf-8", file.read_bytes().rstrip(b"\r\n")
    reading = csv.ReadOptions(use_threads=False, autogenerate_column_names=options.header is False, encoding=encoding)
    parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        names = csv.open_csv(pa.BufferReader(raw), reading, parsing).schema.names
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        parsing.ignore_empty_lines = len(names) > 1  # of a single column each is an empty cell
        table = csv.read_csv(pa.BufferReader(raw), reading, parsing, as_text)
    except Exception as error:  # pyarrow raises its own, OSError, LookupError, UnicodeError
        what = f"{file} cannot be read as CSV: {error}; columns are separated by {separator!r}, its text is {encoding}"
        unless = "unless --separator and --encoding say otherwise; a cell that holds the separator stands in quotes"
        raise ConfigError(f"{what}, {unless}") from None
    if not len(table):
        raise ConfigError(f"{file} has no rows")
    check_names(file, names)
    others = ";\t|" + " :" * (len(names) == 1)
    if not options.separator and (found := next((s for name in names for s in others if s in name), None)):
        what = f"{file}: a column's name holds {found!r}"
        raise ConfigError(f"{what}; --separator {found!r} if it separates columns, --separator {separator!r} if not")
    return table


def typed(file: Path, name: str, cells: Any, options: PackOptions) -> Any:
    """A column as it is written, (rows,) strings, as numbers if all its cells are some."""
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
    numbers = pc.if_else(empty, pa.scalar(None, pa.string()), trimmed)
    if options.decimal == "," and not pc.any(pc.match_substring(filled, ".")).as_py():  # else 1.000 would become 1
        numbers = pc.replace_substring(numbers, ",", ".")
    for kind in TYPES.get(given or "", ("int64", "uint64", "float64")):
        try:
            made = numbers.cast(kind)
        except pa.ArrowInvalid:
            continue
        return narrowed(check_digits(file, name, numbers, made)) if kind == "float64" else made
    if given in ("int", "float"):
        raise ConfigError(f"--as {name}={given}: column {name!r} of {file} holds other cells")
    comma = filled.filter(pc.match_substring(filled, ","))
    if len(comma) and pc.all(pc.match_substring_regex(filled, WITH_COMMA)).as_py():
        what = f"{file}: column {name!r} holds {comma[0].as_py()!r}: --decimal , reads numbers with a comma as point"
        raise ConfigError(f"{what} (write marks of thousands without), --as {name}=text keeps texts")
    return cells


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
            raise ConfigError(f"{what}; --as {name}=text keeps it as it is written")
    return floats


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
        raise ConfigError(f"{what}; give each a name of its own, or --no-header if the first line is a sample")
