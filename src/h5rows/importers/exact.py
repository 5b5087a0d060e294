"""Numbers of table columns as one type that keeps them: whole numbers to the last digit, others rounded once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

DIGITS = re.compile(r"[+-]?\d+(\.0*)?")
SMALLEST, WHOLE = float(np.finfo(np.float32).tiny), 1 << 24  # float32 rounds numbers between these to 24 bits


def is_list(kind: Any) -> bool:
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def number_type(kind: Any) -> np.dtype:
    """NumPy's of an arrow type, or of the values of its lists; ValueError: it is none of numbers."""
    import pyarrow.types as pt

    inner = kind.value_type if is_list(kind) else kind
    if not (pt.is_integer(inner) or pt.is_floating(inner) or pt.is_boolean(inner) or pt.is_null(inner)):
        raise ValueError(f"is {kind}; numbers, strings and bytes are read")
    return np.dtype(np.float32 if pt.is_null(inner) else inner.to_pandas_dtype())


def common_type(columns: Sequence[Any], csv: bool) -> np.dtype:
    """The type of a field of these columns (arrow arrays). Those of a CSV say only whether they have a point."""
    kinds = {number_type(c.type) for c in columns}
    empty = any(c.null_count for c in columns)
    if csv and (empty or any(k.kind == "f" for k in kinds)):
        return np.result_type(np.float32, *(smallest_float(c) for c in columns))
    return np.result_type(*kinds, *[np.float64] * (empty and any(k.kind != "f" for k in kinds)))


def smallest_float(cells: Any) -> np.dtype:
    """float32 if it holds whole numbers exactly, and the rest to all digits that were written, else float64."""
    values = as_numpy(cells)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if values.dtype.kind != "f":
        return np.dtype(np.float32 if (narrow.astype(np.float64) == values).all() and fits(values, narrow) else "f8")
    size = np.abs(values)
    usual = (size >= SMALLEST) & (size < WHOLE)
    same = np.isnan(values) | (narrow == values)
    if (rest := usual & ~same).any():
        same[rest] = as_written(narrow[rest]) == values[rest]
    return np.dtype(np.float32 if same.all() else np.float64)


def as_written(narrow: np.ndarray) -> np.ndarray:
    """The numbers that float32 would be written as: 0.1 for the one nearest to 0.1; those of more digits come back as
    others."""
    import pyarrow as pa

    written: np.ndarray = pa.array(narrow).cast(pa.string()).cast(pa.float64()).to_numpy()
    return written


def as_numpy(cells: Any) -> np.ndarray:
    """0 where a cell is empty: arrow would make whole numbers beside empty cells floats."""
    number_type(cells.type)
    if cells.null_count == len(cells):
        return np.zeros(len(cells), number_type(cells.type))
    zero = False if str(cells.type) == "bool" else 0
    return (cells.fill_null(zero) if cells.null_count else cells).to_numpy(zero_copy_only=False)


def fits(values: np.ndarray, narrow: np.ndarray) -> bool:
    """Whether whole numbers came through as floats."""
    if values.dtype.kind == "b" or not len(values):
        return True
    top = 2.0 ** (8 * values.dtype.itemsize - (values.dtype.kind == "i"))
    if (narrow >= top).any():  # rounded up, out of the type
        return False
    return bool((narrow.astype(values.dtype) == values).all())


def exact(cells: Any, dtype: np.dtype | None) -> np.ndarray:
    """An arrow array as this type, NaN where it is empty; ValueError where a whole number would change."""
    values = as_numpy(cells)
    if dtype is None or values.dtype == dtype:
        out = values
    else:
        out = values.astype(dtype)
        if dtype.kind == "f" and values.dtype.kind != "f" and not fits(values, out):
            lost = next(v for k, v in enumerate(values) if not fits(values[k : k + 1], out[k : k + 1]))
            raise ValueError(f"{lost} would lose digits as {dtype}, the type that this field takes with all its cells")
    if cells.null_count and out.dtype.kind == "f":
        out = np.where(cells.is_null().to_numpy(zero_copy_only=False), np.asarray(np.nan, out.dtype), out)
    return out


def restore_whole_numbers(table: Any, as_text: Callable[[str], Any]) -> Any:
    """A CSV's table as it was read, whose whole numbers of more than 63 bits arrow has made floats: as uint64.

    as_text: the cells of a column as they are written. ValueError: no type holds them all.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for k, column in enumerate(table.schema):
        if not pa.types.is_floating(column.type):
            continue
        values = np.nan_to_num(table.column(k).to_numpy(), nan=0, posinf=np.inf, neginf=-np.inf)
        if not (large := np.abs(values) >= 2.0**53).any():
            continue
        written = pc.utf8_trim_whitespace(as_text(column.name))
        lost = next((c for c in written.filter(pa.array(large)).to_pylist() if changed(c)), None)
        if lost is None:
            continue
        try:
            table = table.set_column(k, column.name, written.cast(pa.uint64()))
        except pa.ArrowInvalid:
            raise ValueError(f"column {column.name!r}: no type holds {lost} and the other numbers exactly") from None
    return table


def changed(cell: str) -> bool:
    """Whether a number is another one as a float64: one too large, or a whole one with too many digits."""
    if np.isinf(float(cell)):
        return "inf" not in cell.lower()
    return bool(DIGITS.fullmatch(cell)) and int(float(cell)) != int(cell.partition(".")[0])
