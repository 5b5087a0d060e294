"""zarr: arrays in chunks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import ArraySource, printable
from h5rows.importers.chunked import ChunkedSource
from h5rows.importers.folders import walk
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions


class ZarrRows:
    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, array.shape, np.dtype(array.dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._array[rows] if isinstance(rows, slice) else self._array.oindex[rows]


def check_blosc() -> None:
    """Of a chunk that was cut short, Blosc copies what lies behind its end in memory: compare the length it states."""
    from numcodecs.blosc import Blosc
    from numcodecs.compat import ensure_contiguous_ndarray

    decode = Blosc.decode
    if decode.__name__ == "checked":
        return

    def checked(self: Any, buf: Any, out: Any = None) -> Any:
        raw = ensure_contiguous_ndarray(buf).view(np.uint8)
        if len(raw) != (stated := int.from_bytes(raw[12:16].tobytes(), "little")):
            raise ValueError(f"a chunk of {len(raw)} bytes instead of {stated}: it was cut short")
        return decode(self, buf, out)

    Blosc.decode = checked


def open_zarr(path: Path, options: PackOptions) -> ArraySource:
    zarr = need("zarr", f"reading {path}", "zarr")
    check_blosc()
    try:
        root = zarr.open(str(path), mode="r")
        if not hasattr(root, "shape"):  # what a consolidated list of the members lacks is there all the same
            root = zarr.open_group(str(path), mode="r", use_consolidated=False)
    except Exception as error:  # zarr raises its own, KeyError, ValueError ...
        raise ConfigError(f"{path} cannot be opened as zarr: {error}") from None
    found = {path.stem: root} if hasattr(root, "shape") else dict(root.members(max_depth=None))
    arrays = {name: item for name, item in found.items() if hasattr(item, "shape")}
    groups = {name: item for name, item in found.items() if name not in arrays}
    if not hasattr(root, "shape"):
        groups[""] = root
    account = Account()
    metadata = check_files(path, set(arrays) if "" in groups else {""}, options.external, account)
    rows = {name: ZarrRows(a) for name, a in arrays.items() if a.shape}
    for name in set(arrays) - set(rows):
        if not options.fields:
            account.leave("arrays", printable(name), "a single value, no rows")
    attrs = {name: attributes_of(arrays[name]) for name in rows}
    return ChunkedSource.of(
        path, rows, attrs, {n: group.attrs for n, group in groups.items()}, options, account, metadata
    )


def attributes_of(array: Any) -> dict[str, Any]:
    """With the fill value, for which HDF5 has no place in a dataset that is mapped."""
    made = dict(array.attrs)
    if array.fill_value is not None:
        made.setdefault("fill_value", np.asarray(array.fill_value, array.dtype)[()])
    return made


def check_files(path: Path, arrays: set[str], external: str, account: Account) -> list[Path]:
    """The metadata files of a store. No file leads out of it, each array is known to zarr, no chunk is empty."""
    metadata = []
    for folder, _, names in walk(path, external, hidden=True):
        for file in (Path(folder, name) for name in names):
            if file.name in (".zarray", ".zgroup", ".zattrs", "zarr.json"):
                metadata.append(file)
            elif file.name[0].isdigit() and not file.stat().st_size:
                raise ConfigError(f"{file} is empty, which zarr reads as one that was never written; copy it again")
            is_array = file.name == ".zarray" or (
                file.name == "zarr.json" and json.loads(file.read_bytes()).get("node_type") == "array"
            )
            name = os.path.relpath(folder, path).removeprefix(".")
            if is_array and name not in arrays:
                account.leave("arrays", printable(name), "zarr does not list it; its groups may lack their metadata")
    return metadata
