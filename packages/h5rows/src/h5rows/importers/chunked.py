"""Read zarr and N5 with tensorstore: arrays with rows in the first dimension, in groups that may be splits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line, need, printable
from h5rows.importers.arrays import places_of, tables_of
from h5rows.importers.folders import walk
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, ArraySource

METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", "attributes.json"}
OWN = {"dimensions", "dataType", "blockSize", "compression", "compressionType", "n5"}  # keys of N5's attributes.json


class ChunkedRows:
    """The rows of an array. reverse: the rows are in its last dimension."""

    def __init__(self, array: Any, reverse: bool) -> None:
        self._array = array.T if reverse else array
        self.shape, self.dtype = tuple(self._array.shape), self._array.dtype.numpy_dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return np.ascontiguousarray(self._array[rows].read().result())


def open_chunked(path: Path, options: PackOptions) -> ArraySource:
    """All arrays that have metadata, whether a group or a consolidated list names them or not."""
    store = need("tensorstore", f"reading {path}", "tensorstore")
    account = Account()
    arrays: dict[str, ChunkedRows] = {}
    attrs: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    drivers = set()
    for folder, _, files in walk(path, options.external, hidden=True):
        if empty := next((name for name in files if name[0].isdigit() and not Path(folder, name).stat().st_size), None):
            raise ConfigError(f"{folder}/{empty} is empty, but a chunk never is; copy it again")
        if (found := described(Path(folder), files)) is None:
            continue
        driver, metadata, own = found
        place = "" if Path(folder) == path else str(Path(folder).relative_to(path))
        if not driver:
            groups[place] = own
            continue
        # metadata without attributes, which may contain NaN, which is not JSON
        spec = {"driver": driver, "metadata": metadata, "assume_metadata": True}
        spec["kvstore"] = {"driver": "file", "path": f"{folder}/"}
        name = place or path.stem
        try:
            array = store.open(spec, read=True).result()
        except ValueError as error:
            failed[name] = f"{folder} cannot be read: {first_line(error).partition(' [')[0]}; leave it out (fields=)"
            continue
        if array.dtype.numpy_dtype.kind == "V":  # bfloat16, float8, int4: NumPy does not have them
            array = store.cast(array, store.int8 if array.dtype.name.startswith("int") else store.float32)
        if array.rank:
            arrays[name] = ChunkedRows(array, options.reverse_axes and driver == "n5")
            drivers.add(driver)
            # a memory-mapped dataset cannot have a fill value
            fill = None if array.fill_value is None else array.fill_value[()]
            attrs[name] = own if fill is None or driver == "n5" else {"fill_value": fill, **own}
        elif not options.fields:
            account.leave("arrays", printable(name), "a single value, not rows")
    for name, (_, field) in places_of([*arrays, *failed], path, options).items():
        if name in failed and (not options.fields or field in options.fields):
            raise ConfigError(failed[name])
    if not arrays:
        raise ConfigError(f"{path} contains no arrays with rows")
    shapes = {name: array.shape for name, array in arrays.items()}
    first, last = ({shape[k] for shape in shapes.values()} for k in (0, -1))
    if "n5" in drivers and not options.reverse_axes and len(first) > 1 and len(last) == 1:
        raise ConfigError(f"{path}: only the last axes have equal sizes: {shapes}; reverse_axes=True reads rows there")
    places = places_of(arrays, path, options)
    source = ArraySource(tables_of(arrays, places), account=account, origin=path)
    source.slow_random = True
    source.field_attrs = {
        place: attributes(attrs[name], name, account)
        for name, place in places.items()
        if not options.fields or place[1] in options.fields
    }
    splits = any(split for split, _ in places.values())
    placed: dict[str, dict[str, Any]] = {}
    for group, own in groups.items():
        word, slash, rest = group.partition("/")
        place = SPLIT_NAMES.get(word.lower(), word) + slash + rest if splits else group
        placed[place] = attributes(own, group or "/", account)
    source.group_attrs = placed
    return source


def described(folder: Path, files: Sequence[str]) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """Return (driver of an array or "" for a group, metadata, attributes) of a folder; None if it is neither."""
    said: dict[str, dict[str, Any]] = {}
    for name in METADATA.intersection(files):
        try:
            said[name] = dict(json.loads((folder / name).read_bytes()))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{folder / name} is not a JSON object: {error}") from None
    if about := said.get("zarr.json"):
        own = about.pop("attributes", {})
        return "zarr3" if about.get("node_type") == "array" else "", about, own
    if {".zarray", ".zgroup"} & set(said):
        if len(said.get(".zarray", {}).get("shape", ())) == 1:
            said[".zarray"]["order"] = "C"  # equal to "F" for one axis, and tensorstore refuses "F" there
        return "zarr" if ".zarray" in said else "", said.get(".zarray", {}), said.get(".zattrs", {})
    if about := said.get("attributes.json"):
        own = {key: about.pop(key) for key in set(about) - OWN}
        return "n5" if "dimensions" in about else "", about, own
    return None


def attributes(found: Mapping[Any, Any], of: str, account: Account) -> dict[str, Any]:
    """Return JSON attributes as HDF5 attributes; invalid names are left out. of: the object, for messages."""
    made: dict[str, Any] = {}
    account.held["attributes"] += len(found)
    for name, value in found.items():
        if not name or "\0" in name or printable(name) != name:
            account.leave("attributes", f"{of}: {printable(name)!r}", "HDF5 does not allow this name")
        else:
            made[name] = attribute(value)
    return made


def attribute(value: Any) -> Any:
    """Return numbers, and texts that HDF5 can store, unchanged; other values as JSON text."""
    if isinstance(value, (np.ndarray, np.generic, bool, float)):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return np.int64(value) if value < 1 << 63 else np.uint64(value)
    return value if isinstance(value, str) and "\0" not in value and printable(value) == value else json.dumps(value)
