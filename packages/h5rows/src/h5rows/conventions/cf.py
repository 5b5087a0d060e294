"""The CF conventions' packed data: stored numbers -> values, as netCDF4 (auto mask and scale) reads them.

A value is masked (there is none) where the stored number is `_FillValue`, one of `missing_value`, or outside of
`valid_range` (`valid_min`, `valid_max`); in a netCDF file without `_FillValue`, also where it is netCDF's default fill.
Others are stored * `scale_factor` + `add_offset`, in NumPy's types. Integers with _Unsigned="true" are unsigned.

CF conventions 1.11, 2.5.1 and 8.1; attributes that the stored type cannot hold are ignored, as netCDF4 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.detect import attribute

# netcdf.h's NC_FILL_*. Of bytes none is assumed, as netCDF's documents advise (netCDF4-python does assume one)
DEFAULT_FILL = {
    "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -9223372036854775806,
    "u8": 18446744073709551614, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip


@dataclass(frozen=True)
class Packing:
    """stored: type in the file, made unsigned where it is meant so. missing: stored numbers that are no values; lowest,
    highest: of those that are values, stored too. None: no such limit, no such factor."""

    stored: np.dtype[Any]
    missing: tuple[Any, ...] = ()
    lowest: Any = None
    highest: Any = None
    scale: Any = None
    offset: Any = None
    cast: np.dtype[Any] | None = None  # of values that are the stored numbers in another type

    @property
    def masks(self) -> bool:
        return bool(self.missing) or self.lowest is not None or self.highest is not None

    def masked(self, stored: np.ndarray) -> np.ndarray:
        """stored: any shape -> bool of that shape: True where there is no value."""
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
        """stored: any shape -> the values of that shape, masked ones among them."""
        stored = self._signed_as_meant(stored)
        if self.scale is not None:
            stored = stored * self.scale
        if self.offset is not None:
            stored = stored + self.offset
        return stored if self.cast is None else stored.astype(self.cast)

    def _signed_as_meant(self, stored: np.ndarray) -> np.ndarray:
        """uint32 that is read as int64 has the right sign already."""
        return stored.view(self.stored.newbyteorder("=")) if stored.itemsize == self.stored.itemsize else stored

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values(np.empty(0, self.stored.newbyteorder("="))).dtype


def packing_of(dset: h5py.Dataset, netcdf: bool) -> Packing | None:
    """None: the numbers are the values. netcdf: the file is netCDF's, whose default fill is no value."""
    kind = dset.dtype
    if kind.kind not in "iuf" or kind.itemsize > 8 or h5py.check_enum_dtype(kind) is not None:
        return None
    signless = kind.kind == "i" and attribute(dset, "_Unsigned") in ("true", "True")
    stored = np.dtype(f"u{kind.itemsize}").newbyteorder(kind.byteorder) if signless else kind

    def limits(name: str) -> list[Any]:
        """Numbers of an attribute, in the stored type; [] where it has others."""
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


def factor(dset: h5py.Dataset, name: str) -> Any:
    """A factor, as a scalar of NumPy's; None: none, or text that is no number."""
    value = attribute(dset, name)
    try:
        return None if value is None or np.ndim(value) else np.float64(value) if isinstance(value, str) else value
    except ValueError:
        return None
