"""Whose file it is, by the marks that each program leaves."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

LOOKED_AT = 50  # objects below the root

NAMES = {
    "matlab": "MATLAB v7.3",
    "netcdf": "netCDF-4",
    "anndata": "AnnData",
    "nexus": "NeXus",
    "pytables": "PyTables",
    "pandas": "pandas (PyTables)",
    "keras": "Keras, a model's weights",
    "plain": "HDF5",
}


def kind_of(file: h5py.File) -> str:
    """One of NAMES. The root's attributes tell, else those of the objects right below it."""
    root = file["/"]
    kind = attribute(root, "encoding-type")
    if kind == "anndata" or {"obs", "var", "X"} <= set(root):
        return "anndata"
    if attribute(root, "_NCProperties") is not None:
        return "netcdf"
    if attribute(root, "NX_class") == "NXroot" or attribute(root, "NeXus_version") is not None:
        return "nexus"
    if attribute(root, "PYTABLES_FORMAT_VERSION") is not None:
        return "pandas" if any(attribute(item, "pandas_type") for item in children(root)) else "pytables"
    if "model_weights" in root or "layer_names" in root.attrs or attribute(root, "keras_version") is not None:
        return "keras"
    for item in children(root):
        if attribute(item, "MATLAB_class") is not None:
            return "matlab"
        if attribute(item, "NX_class") is not None:
            return "nexus"
        if isinstance(item, h5py.Dataset) and attribute(item, "CLASS") == "DIMENSION_SCALE":
            return "netcdf"
    return "plain"


def children(group: h5py.Group) -> list[Any]:
    """The first objects of a group that lie in this file and can be opened."""
    found = []
    for name in list(group)[:LOOKED_AT]:
        try:
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                found.append(group[name])
        except (KeyError, OSError, RuntimeError, TypeError, ValueError):
            continue
    return found


def attribute(item: Any, name: str) -> Any:
    """A number or text; an array of one element as that; None where there is none, or none that can be read."""
    try:
        value = item.attrs.get(name)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        return None
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
