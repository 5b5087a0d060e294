"""Detect which program wrote a file, by its attributes and groups."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

LOOKED_AT = 50  # objects of a group that are read
MATRIX = {"barcodes", "data", "indices", "indptr", "shape"}  # members of a matrix of 10x Genomics

NAMES = {
    "matlab": "MATLAB v7.3",
    "netcdf": "netCDF-4",
    "anndata": "AnnData",
    "nexus": "NeXus",
    "pytables": "PyTables",
    "pandas": "pandas (PyTables)",
    "keras": "Keras, a model's weights",
    "loom": "loom",
    "10x": "10x Genomics",
    "molecules": "10x Genomics, a list of molecules",
    "nwb": "NWB",
    "plain": "HDF5",
}


def kind_of(file: h5py.File) -> str:
    """Return one of NAMES, by the attributes of the root, otherwise by those of its members."""
    root = file["/"]
    kind = attribute(root, "encoding-type")
    if kind == "anndata" or {"obs", "var", "X"} <= set(root):
        return "anndata"
    if {"matrix", "row_attrs", "col_attrs"} <= set(root):
        return "loom"
    if attribute(root, "_NCProperties") is not None:
        return "netcdf"
    if attribute(root, "NX_class") == "NXroot" or attribute(root, "NeXus_version") is not None:
        return "nexus"
    if attribute(root, "nwb_version") is not None:
        return "nwb"
    if {"barcode_idx", "barcodes", "umi"} <= set(root):
        return "molecules"
    if any(isinstance(item, h5py.Group) and set(item) >= MATRIX for item in children(root)):  # before PyTables, which
        return "10x"  # wrote the files of Cell Ranger 2
    if attribute(root, "PYTABLES_FORMAT_VERSION") is not None:
        return "pandas" if any(attribute(item, "pandas_type") for item in children(root)) else "pytables"
    if "model_weights" in root or "layer_names" in root.attrs or attribute(root, "keras_version") is not None:
        return "keras"
    if {"layers", "vars"} <= set(root) and all(isinstance(item, h5py.Group) for item in children(root)):
        return "keras"  # save_weights of Keras 3 writes no attributes
    for item in children(root):
        if attribute(item, "MATLAB_class") is not None:
            return "matlab"
        if attribute(item, "NX_class") is not None:
            return "nexus"
        if isinstance(item, h5py.Dataset) and attribute(item, "CLASS") == "DIMENSION_SCALE":
            return "netcdf"
    return "plain"


def is_plain_like(file: h5py.File, names: list[str]) -> bool:
    """Return True if a file is certainly plain: it has no attributes that `kind_of` reads, and its root has
    the same `names` as another plain file. This is ten times as fast as `kind_of`."""
    if len(names) > LOOKED_AT or h5py.h5a.get_num_attrs(file.id) or list(file) != names:
        return False
    for name in file.id:
        if file.id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return False
        item = h5py.h5o.open(file.id, name)
        if h5py.h5a.get_num_attrs(item) or (isinstance(item, h5py.h5g.GroupID) and len(item) >= len(MATRIX)):
            return False
    return True


def children(group: h5py.Group) -> list[Any]:
    """Return the first objects in a group, without links and without objects that cannot be opened."""
    found = []
    for name in list(group)[:LOOKED_AT]:
        try:
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                found.append(group[name])
        except (KeyError, OSError, RuntimeError, TypeError, ValueError):
            continue
    return found


def attribute(item: Any, name: str) -> Any:
    """Return an attribute as number or text, also if it is an array of one element; None if it is missing or cannot be
    read."""
    try:
        value = item.attrs.get(name)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        return None
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
