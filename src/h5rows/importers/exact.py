"""Numbers of table columns as one type that keeps them: whole numbers to the last digit, others rounded once."""

from __future__ import annotations

import re
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


def exact(cells: Any, dtype: np.dtype | None) -> np.ndarray:
    """An arrow array as this type, None: its own; NaN where it is empty. ValueError where a whole number might change,
    which is from 2^24 or 2^53 on as float32 or float64."""
    import pyarrow as pa

    dtype = dtype or number_type(cells.type)
    try:
        return cells.cast(pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        number = re.search(r"-?\d+", str(error))
        lost = number[0] if number else "a number"
        raise ValueError(f"{lost} would lose digits as {dtype}, the type of this field with all its cells") from None
