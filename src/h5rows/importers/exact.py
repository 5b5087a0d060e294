"""Numbers of table columns as one type that keeps them: whole numbers to the last digit, others rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def narrowed(cells: Any) -> Any:
    """An arrow array of float64 as float32, if that is written with the same digits: 0.1 is, 0.123456789 is not."""
    import pyarrow as pa

    values = cells.to_numpy(zero_copy_only=False)  # NaN where it is empty
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    size = np.abs(values)
    written = pa.array(narrow).cast(pa.string()).cast(pa.float64()).to_numpy()
    same = (narrow == values) | ((size >= SMALLEST) & (size < WHOLE) & (written == values)) | np.isnan(values)
    return cells.cast(pa.float32()) if same.all() else cells


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
