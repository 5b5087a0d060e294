"""Decode packed data of the CF conventions: stored numbers -> values, as netCDF4 does (auto mask and scale).

A value is missing if the stored number is `_FillValue`, one of `missing_value`, or outside `valid_range` (`valid_min`,
`valid_max`); in a netCDF file without `_FillValue`, also if it is netCDF's default fill value. Other values are stored
* `scale_factor` + `add_offset`, with NumPy's type promotion. Integers with _Unsigned="true" are unsigned.

See CF conventions 1.11, sections 2.5.1 and 8.1. Attributes that the stored type cannot represent are ignored, as in
netCDF4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.detect import attribute

# NC_FILL_* of netcdf.h. Bytes have no default, as netCDF's documentation recommends (netCDF4-python assumes one)
DEFAULT_FILL = {
    "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -9223372036854775806,
    "u8": 18446744073709551614, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip


@dataclass(frozen=True)
class Packing:
    """How stored numbers become values.

    stored: type in the file, unsigned if _Unsigned is set. missing: stored numbers that mean "no value". lowest,
    highest: valid range of stored numbers. scale, offset: the factors. None: no such limit or factor.
    """

    stored: np.dtype[Any]
    missing: tuple[Any, ...] = ()
    lowest: Any = None
    highest: Any = None
    scale: Any = None
    offset: Any = None
    cast: np.dtype[Any] | None = None  # if the values are the stored numbers in another type

    @property
    def masks(self) -> bool:
        """Return True if values can be missing."""
        return bool(self.missing) or self.lowest is not None or self.highest is not None

    def masked(self, stored: np.ndarray) -> np.ndarray:
        """Return a mask of the shape of `stored`, True if the value is missing."""
        stored = self._signed_as_meant(stored)
        mask = np.zeros(stored.shape, bool)
        for number in self.missing:
            mask |= np.isnan(stored) if number != number else stored == number
        if self.lowest is not None:
            mask |= stored < self.lowest
        if self.highest is not None:
            mask |= stored > self.highest
        return mask

    def values(self, stored: np.ndarray) -> np.ndarray:
        """Return the values of the stored numbers, same shape; missing ones are converted like the others."""
        stored = self._signed_as_meant(stored)
        if self.scale is not None:
            stored = stored * self.scale
        if self.offset is not None:
            stored = stored + self.offset
        return stored if self.cast is None else stored.astype(self.cast)

    def _signed_as_meant(self, stored: np.ndarray) -> np.ndarray:
        """Reinterpret the numbers as unsigned if needed. uint32 that was read as int64 has the right sign already."""
        return stored.view(self.stored.newbyteorder("=")) if stored.itemsize == self.stored.itemsize else stored

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the values."""
        return self.values(np.empty(0, self.stored.newbyteorder("="))).dtype


def packing_of(dset: h5py.Dataset, netcdf: bool) -> Packing | None:
    """Return the packing of a dataset; None if the stored numbers are the values.

    netcdf: the file is a netCDF file, whose default fill value means "missing".
    """
    kind = dset.dtype
    if kind.kind not in "iuf" or kind.itemsize > 8 or h5py.check_enum_dtype(kind) is not None:
        return None
    signless = kind.kind == "i" and attribute(dset, "_Unsigned") in ("true", "True")
    stored = np.dtype(f"u{kind.itemsize}").newbyteorder(kind.byteorder) if signless else kind

    def limits(name: str) -> list[Any]:
        """Return the numbers of an attribute in the stored type; [] if that type cannot represent them."""
        try:
            given = np.atleast_1d(np.asarray(dset.attrs[name]))
            with np.errstate(invalid="ignore", over="ignore"):
                taken = given.astype(kind)
            same = (given == taken) | ((given != given) & (taken != taken))
        except (KeyError, OSError, RuntimeError, TypeError, ValueError):
            return []
        return list(taken.view(stored)) if np.all(same) else []

    fill = limits("_FillValue")
    missing = [*limits("missing_value"), *fill]
    if not fill and netcdf and not signless and (number := DEFAULT_FILL.get(f"{kind.kind}{kind.itemsize}")) is not None:
        missing.append(kind.type(number))
    between = limits("valid_range")
    lowest, highest = limits("valid_min"), limits("valid_max")
    if len(between) == 2:
        lowest, highest = between[:1], between[1:]
    scale, offset, cast = factor(dset, "scale_factor"), factor(dset, "add_offset"), None
    if scale is not None and offset is not None:
        if scale == 1 and offset == 0:
            cast, scale, offset = np.asarray(scale).dtype, None, None
    else:
        scale, offset = None if scale == 1 else scale, None if offset == 0 else offset
    made = Packing(stored, tuple(missing), next(iter(lowest), None), next(iter(highest), None), scale, offset, cast)
    return None if made == Packing(kind) else made


def rows_of_dimension(dset: h5py.Dataset) -> int:
    """Return how many rows netCDF shows: as many as the longest variable along the dimension has, if it can grow."""
    try:
        dimension = dset.file[dset.attrs["DIMENSION_LIST"][0][0]] if "DIMENSION_LIST" in dset.attrs else dset
        along = dimension.attrs["REFERENCE_LIST"] if dimension.maxshape[0] is None else []
        return max(len(dset), len(dimension), *(dset.file[other].shape[axis] for other, axis in along))
    except (IndexError, KeyError, OSError, RuntimeError, TypeError, ValueError):
        return len(dset)


def factor(dset: h5py.Dataset, name: str) -> Any:
    """Return a factor as a NumPy scalar; None if there is none, or if it is text that is not a number."""
    value = attribute(dset, name)
    try:
        return None if value is None or np.ndim(value) else np.float64(value) if isinstance(value, str) else value
    except ValueError:
        return None
