"""netCDF4's own reader, the judge of packed values."""

from __future__ import annotations

import os
from typing import Any

import pytest


def netcdf4() -> Any:
    """Import netCDF4, or skip. Importing it puts its folder of filters into HDF5_PLUGIN_PATH; those are linked with an
    HDF5 of another version, in which h5py's objects do not exist: each later process that writes blosc would fail."""
    known = os.environ.get("HDF5_PLUGIN_PATH")
    module = pytest.importorskip("netCDF4")
    if known is None:
        os.environ.pop("HDF5_PLUGIN_PATH", None)
    return module
