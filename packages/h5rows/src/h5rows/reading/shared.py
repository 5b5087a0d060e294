"""Values that all splits of a data set need, such as the column of `by`: read once, not once per split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from h5rows.reading.external import REFUSE_EXTERNAL
from h5rows.reading.opening import is_remote
from h5rows.reading.stored import identity

_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """In this block, keep the columns that data sets read to choose their rows or to number their classes, and large
    descriptions of files, so that the splits of one data set read them once."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept() -> dict[Any, Any] | None:
    """Return what is kept until the end of the block of `reading_once`; None outside of such a block."""
    return _kept.get()


def once(files: Sequence[str], key: object, make: Callable[[], Any], swmr: bool, external: str) -> Any:
    """Return make(); in `reading_once`, return the result of an earlier call for the same files and key.

    Files that may change while they are open, or that lead to other files, are read again.
    """
    block = kept()
    if block is None or swmr or external != REFUSE_EXTERNAL or any(map(is_remote, files)):
        return make()
    whole = (*zip(files, map(identity, files)), str(key))
    if whole not in block:
        block[whole] = make()
    return block[whole]


def coded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (distinct values in ascending order, the index in them of each value) of values (N,)."""
    values = values.astype(str) if values.dtype == object else values
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct, codes.astype(np.min_scalar_type(len(distinct)))
