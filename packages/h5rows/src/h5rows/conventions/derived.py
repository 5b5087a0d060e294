"""Fields that are computed from stored ones: unpacked, transposed, dense rows of a sparse matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from h5rows.conventions.cf import Packing
from h5rows.errors import ConfigError, argument
from h5rows.reading.fields import Field, Fixed, FlatOffsets, for_torch, torch_dtype


class Made(Field):
    """A field computed from another field."""

    def __init__(self, inner: Any, shape: tuple[int, ...], dtype: np.dtype[Any], done: str) -> None:
        self.inner, self.shape, self.dtype = inner, shape, dtype
        self.way, self.reason, self.chunk_rows = inner.way, f"{done}; {inner.reason}", inner.chunk_rows

    @property
    def file(self) -> Any:
        """Return the file of the other field."""
        return self.inner.file


class RowByRow(Made):
    """A field whose row i is computed only from row i of the other field."""

    def advise(self, rows: np.ndarray) -> None:
        """Read these rows of the other field in the background."""
        self.inner.advise(rows)


class Unpacked(RowByRow):
    """Values of packed numbers. fill: replaces missing values; None: no value is missing, or such rows are removed."""

    def __init__(self, inner: Field, packing: Packing, fill: float | None, where: str) -> None:
        dtype, self.fill = torch_dtype(packing.dtype), fill
        if fill is not None and dtype.kind in "iu":
            if math.isnan(fill):  # integers have no NaN; those of up to two bytes fit float32
                dtype = np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
            elif not (fill.is_integer() and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max):
                raise ConfigError(
                    f"{where} contains {dtype}, which cannot represent {argument('missing')}={fill}; change it"
                )
        said = [f"{name} {value}" for name, value in (("times", packing.scale), ("plus", packing.offset)) if value]
        said += ["missing values: " + str(fill)] * (fill is not None)
        super().__init__(inner, inner.shape, dtype, "unpacked: " + (", ".join(said) or "unsigned"))
        self.packing, self._where = packing, where

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the values, with missing ones replaced."""
        stored = self.inner.read(rows)
        values = for_torch(self.packing.values(stored), self._where)
        if self.fill is None:
            return values
        return np.where(self.packing.masked(stored), self.dtype.type(self.fill), values.astype(self.dtype, copy=False))


class Mask(RowByRow):
    """The mask of a field, bool: True if the value is missing."""

    def __init__(self, inner: Fixed, packing: Packing) -> None:
        super().__init__(inner, inner.shape, np.dtype(bool), "the mask")
        self.packing = packing

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the mask of these rows."""
        return self.packing.masked(self.inner.read(rows))


class Longer(Made):
    """A variable of netCDF with fewer rows than its dimension: the other rows contain its fill value."""

    def __init__(self, inner: Fixed, rows: int, fill: Any) -> None:
        super().__init__(inner, (rows, *inner.shape[1:]), inner.dtype, f"fill values from row {len(inner)} on")
        self._fill = fill

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows."""
        out = np.full((len(rows), *self.shape[1:]), self._fill, self.dtype)
        there = rows < len(self.inner)
        out[there] = self.inner.read(rows[there])
        return out


class Turned(RowByRow):
    """MATLAB's samples along its last axis: an array (H, W, 3, N) is stored as (N, 3, W, H). Its samples have
    the shape (H, W, 3)."""

    def __init__(self, inner: Fixed) -> None:
        count, *sample = inner.shape
        super().__init__(inner, (count, *reversed(sample)), inner.dtype, "axes as MATLAB shows them")

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the samples with reversed axes."""
        samples = self.inner.read(rows)
        return samples.transpose(0, *range(samples.ndim - 1, 0, -1))


class Columns(Made):
    """Samples along the last axis of the file, (N, F) stored as (F, N), as by MATLAB and loom. A view of the file if
    it is mapped as a whole, otherwise in memory."""

    def __init__(self, inner: Fixed, most_bytes: int, where: str) -> None:
        super().__init__(inner, inner.shape[::-1], inner.dtype, "transposed")
        self.chunk_rows = 1
        self._view = inner.way == "mapped" and inner.reason.startswith("contiguous")
        self._held = None
        if not self._view:
            if (size := inner.nbytes(None)) > most_bytes:
                what = f"{where}: its samples are spread over {size / 1e6:,.0f} MB of chunks"
                raise ConfigError(f"{what}; {argument('cache_mb')}={-(-size >> 20)} keeps it in memory")
            self._held = inner.column()

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the samples (B, F)."""
        whole = self.inner.view(0, len(self.inner)) if self._held is None else self._held
        return np.ascontiguousarray(np.take(whole, rows, axis=-1).T)


class Sparse(Made):
    """Rows of a CSR matrix as dense rows.

    values, columns: fields (stored,). starts: (N + 1,) int64, where each row begins. width: columns of the matrix.
    where: its file and name, for messages.
    """

    def __init__(self, values: Field, columns: Field, starts: np.ndarray, width: int, where: str) -> None:
        super().__init__(values, (len(starts) - 1, width), values.dtype, "sparse")
        self.columns, self.starts, self.chunk_rows, self.where = columns, starts, 1, where

    @staticmethod
    def inside(indices: np.ndarray, count: int, where: str) -> np.ndarray:
        """Return the indices of stored values. Raise ConfigError unless they are in 0..count-1."""
        if len(indices) and (indices.min() < 0 or indices.max() >= count):
            raise ConfigError(f"{where}: its indices must be in 0..{count - 1}; write the file again")
        return indices

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return dense rows (B, width)."""
        begin, count = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        stored = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())  # indices of the entries
        out = np.zeros((len(rows), self.shape[1]), self.dtype)
        columns = self.inside(self.columns.read(stored), self.shape[1], self.where)
        places = np.repeat(np.arange(len(rows)), count) * self.shape[1] + columns
        np.add.at(out.reshape(-1), places, self.inner.read(stored))  # duplicate entries are summed, as in SciPy
        return out


class Vector(Made):
    """A vector of MATLAB, N x 1 or 1 x N, as (N,)."""

    def __init__(self, inner: Fixed) -> None:
        self._across = inner.shape[0] == 1 and inner.shape[1] != 1  # N x 1 is stored as (1, N)
        super().__init__(inner, (max(inner.shape),), inner.dtype, "a vector")

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the values (B,)."""
        if self._across:
            return self.inner.read(np.zeros(1, np.int64))[0, rows]
        return self.inner.read(rows)[:, 0]


class Numbers(Field):
    """Numbers (N,) that were computed when the file was opened."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers (B,)."""
        read: np.ndarray = self.values[rows]
        return read


class Indexed(FlatOffsets):
    """Rows of different length of NWB: row i ends before ends[i], and begins where the row before it ends."""

    def __init__(self, values: Fixed, ends: np.ndarray, where: str) -> None:
        self._where, self.values, self.text = where, values, False
        self.way, self.reason, self.dtype = values.way, f"index of ends, values {values.reason}", values.dtype
        self.shape, self.offsets = (-1, *values.shape[1:]), np.concatenate([[0], ends]).astype(np.int64)
        if (np.diff(self.offsets) < 0).any() or self.offsets[-1] > len(values):
            raise ConfigError(f"{where}: its index must not decrease, and must be in 0 to {len(values)}")


class Listed(Field):
    """Samples of different length that were read when the file was opened: arrays (length, *sample), or strings."""

    def __init__(self, samples: list[Any], reason: str) -> None:
        self.samples, self.reason, self.shape, self.dtype = samples, f"{reason}, held in memory", (-1,), np.dtype("u1")
        self.text = not samples or isinstance(samples[0], str)
        if not self.text:
            self.shape, self.dtype = (-1, *samples[0].shape[1:]), samples[0].dtype

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def nbytes(self, rows: np.ndarray | None) -> int:
        """Return the bytes of these rows, or of all; the number of characters for strings."""
        found = self.samples if rows is None else self.read(rows)
        return sum(len(sample) if self.text else sample.nbytes for sample in found)

    def read(self, rows: np.ndarray) -> list[Any]:
        """Return these samples."""
        return [self.samples[k] for k in rows.tolist()]

    def column(self) -> np.ndarray:
        """Return the lengths (N,); for strings, in characters."""
        return np.array([len(sample) for sample in self.samples], np.int64)
