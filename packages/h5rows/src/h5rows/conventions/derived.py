"""Fields made of what lies in the file: unpacked, turned, dense rows of a sparse matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from h5rows.conventions.cf import Packing
from h5rows.errors import ConfigError
from h5rows.reading.fields import Field, Fixed, for_torch, torch_dtype

Masked = float | str  # what stands where a file has no value: a number (NaN), or "drop": such rows are left out


class Made(Field):
    """Rows of another field, changed."""

    def __init__(self, inner: Any, shape: tuple[int, ...], dtype: np.dtype[Any], done: str) -> None:
        self.inner, self.shape, self.dtype = inner, shape, dtype
        self.way, self.reason, self.chunk_rows = inner.way, f"{done}; {inner.reason}", inner.chunk_rows

    @property
    def file(self) -> Any:
        return self.inner.file


class RowByRow(Made):
    """Each row is made of the other field's row of its number."""

    def advise(self, rows: np.ndarray) -> None:
        self.inner.advise(rows)


class Unpacked(RowByRow):
    """Values of packed numbers. fill: what stands for those that are masked; None: the field is known to have none."""

    def __init__(self, inner: Field, packing: Packing, fill: float | None, where: str) -> None:
        dtype, self.fill = torch_dtype(packing.dtype), fill
        if fill is not None and dtype.kind in "iu":
            if math.isnan(fill):  # no integer is: those of up to two bytes fit a float32
                dtype = np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
            elif not (fill.is_integer() and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max):
                raise ConfigError(f"{where} holds {dtype}, so data.missing={fill} cannot stand for what is missing")
        said = [f"{name} {value}" for name, value in (("times", packing.scale), ("plus", packing.offset)) if value]
        said += ["without a value: " + str(fill)] * (fill is not None)
        super().__init__(inner, inner.shape, dtype, "unpacked: " + (", ".join(said) or "unsigned"))
        self.packing, self._where = packing, where

    def read(self, rows: np.ndarray) -> np.ndarray:
        stored = self.inner.read(rows)
        values = for_torch(self.packing.values(stored), self._where)
        if self.fill is None:
            return values
        return np.where(self.packing.masked(stored), self.dtype.type(self.fill), values.astype(self.dtype, copy=False))


class Mask(RowByRow):
    """bool: True where a field has no value."""

    def __init__(self, inner: Fixed, packing: Packing) -> None:
        super().__init__(inner, inner.shape, np.dtype(bool), "the mask")
        self.packing = packing

    def read(self, rows: np.ndarray) -> np.ndarray:
        return self.packing.masked(self.inner.read(rows))


class Turned(RowByRow):
    """MATLAB's samples along its last axis: what it shows as (H, W, 3, N) lies as (N, 3, W, H), samples (H, W, 3)."""

    def __init__(self, inner: Fixed) -> None:
        count, *sample = inner.shape
        super().__init__(inner, (count, *reversed(sample)), inner.dtype, "axes as MATLAB shows them")

    def read(self, rows: np.ndarray) -> np.ndarray:
        samples = self.inner.read(rows)
        return samples.transpose(0, *range(samples.ndim - 1, 0, -1))


class Columns(Made):
    """MATLAB's samples along its first axis: (N, F) lies as (F, N). A view of the file where it is mapped as a whole,
    else held in memory."""

    def __init__(self, inner: Fixed, most_bytes: int, where: str) -> None:
        super().__init__(inner, inner.shape[::-1], inner.dtype, "axes as MATLAB shows them")
        self.chunk_rows = 1
        self._view = inner.way == "mapped" and inner.reason.startswith("contiguous")
        self._held = None
        if not self._view:
            if (size := inner.nbytes(None)) > most_bytes:
                what = f"{where}: its samples lie across {size / 1e6:,.0f} MB of chunks"
                raise ConfigError(f"{what}; data.cache_mb={-(-size >> 20)} holds it in memory")
            self._held = inner.column()

    def read(self, rows: np.ndarray) -> np.ndarray:
        whole = self.inner.view(0, len(self.inner)) if self._held is None else self._held
        return np.ascontiguousarray(np.take(whole, rows, axis=-1).T)


class Sparse(Made):
    """Rows of a CSR matrix, dense. values, columns: (stored,) fields; starts: (N + 1,) int64, where each row begins.
    held: (values, columns) of a matrix that was turned in memory, in the place of the fields."""

    def __init__(self, values: Fixed, columns: Fixed, starts: np.ndarray, width: int, held: Any) -> None:
        super().__init__(values, (len(starts) - 1, width), values.dtype, "sparse")
        self.columns, self.starts, self.held, self.chunk_rows = columns, starts, held, 1

    def read(self, rows: np.ndarray) -> np.ndarray:
        begin, count = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        stored = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())  # numbers of the entries
        if self.held is not None:
            values, columns = (each[stored] for each in self.held)
        else:
            values, columns = self.inner.read(stored), self.columns.read(stored)
        out = np.zeros((len(rows), self.shape[1]), self.dtype)
        places = np.repeat(np.arange(len(rows)), count) * self.shape[1] + columns
        np.add.at(out.reshape(-1), places, values)  # as SciPy: an entry that is there twice is a sum
        return out


class Vector(Made):
    """MATLAB's N x 1 or 1 x N: (N,)."""

    def __init__(self, inner: Fixed) -> None:
        self._across = inner.shape[0] == 1 and inner.shape[1] != 1  # N x 1 lies as (1, N)
        super().__init__(inner, (max(inner.shape),), inner.dtype, "a vector")

    def read(self, rows: np.ndarray) -> np.ndarray:
        if self._across:
            return self.inner.read(np.zeros(1, np.int64))[0, rows]
        return self.inner.read(rows)[:, 0]


class Numbers(Field):
    """Numbers (N,) that were made when the file was opened."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def read(self, rows: np.ndarray) -> np.ndarray:
        read: np.ndarray = self.values[rows]
        return read


class Strings(Field):
    """Texts that were looked up when the file was opened."""

    text, shape, dtype = True, (-1,), np.dtype(np.uint8)

    def __init__(self, texts: list[str], reason: str) -> None:
        self.texts, self.reason = texts, f"{reason}, held in memory"

    def __len__(self) -> int:
        return len(self.texts)

    def nbytes(self, rows: np.ndarray | None) -> int:
        return sum(len(self.texts[k]) for k in (range(len(self)) if rows is None else rows.tolist()))

    def read(self, rows: np.ndarray) -> list[str]:
        return [self.texts[k] for k in rows.tolist()]

    def column(self) -> np.ndarray:
        return np.array([len(text) for text in self.texts], np.int64)
