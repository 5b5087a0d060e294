"""zarr through zarr, N5 through tensorstore: arrays with the rows first, in groups that may be splits."""

from __future__ import annotations

import json
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.arrays import by_split
from h5rows.importers.attributes import attributes
from h5rows.importers.base import SPLIT_NAMES, ArraySource, printable
from h5rows.importers.folders import OF_SYSTEMS, walk
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions


class ChunkedSource(ArraySource):
    slow_random = True


class ZarrRows:
    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, array.shape, np.dtype(array.dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._array[rows] if isinstance(rows, slice) else self._array.oindex[rows]


class StoreRows:
    """An N5 dataset. reverse: its last dimension counts the rows."""

    def __init__(self, array: Any, reverse: bool) -> None:
        self._array = array.T if reverse else array
        self.shape, self.dtype = tuple(self._array.shape), self._array.dtype.numpy_dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return np.ascontiguousarray(self._array[rows].read().result())


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
    account, files = Account(), files_of(path, options.external)
    try:
        root = zarr.open(str(path), mode="r")
        if not hasattr(root, "shape"):  # what a consolidated list of the members lacks is there all the same
            root = zarr.open_group(str(path), mode="r", use_consolidated=False)
    except Exception as error:  # zarr raises its own, KeyError, ValueError ...
        raise ConfigError(f"{path} cannot be opened as zarr: {error}") from None
    found = {path.stem: root} if hasattr(root, "shape") else dict(root.members(max_depth=None))
    arrays = {name: item for name, item in found.items() if hasattr(item, "shape")}
    groups = {name: dict(item.attrs) for name, item in found.items() if name not in arrays}
    groups[""] = {} if hasattr(root, "shape") else dict(root.attrs)
    check_chunks(path, files, [""] if hasattr(root, "shape") else list(arrays), account)
    rows = {name: ZarrRows(a) for name, a in arrays.items() if a.shape}
    attrs = {name: zarr_attrs(arrays[name]) for name in rows}
    for name in set(arrays) - set(rows):
        if not options.fields:
            account.leave("arrays", printable(name), "a single value, no rows")
    return tables_of(path, rows, options, account, attrs, groups)


def zarr_attrs(array: Any) -> dict[str, Any]:
    """With what HDF5 has no place for in a dataset that is mapped."""
    made = dict(array.attrs)
    if array.fill_value is not None:
        made.setdefault("fill_value", np.asarray(array.fill_value, array.dtype)[()])
    if names := getattr(array.metadata, "dimension_names", None):
        made.setdefault("dimension_names", list(names))
    return made


def files_of(path: Path, external: str) -> list[str]:
    """All files of a store, relative to it; none leads out of it."""
    return [
        os.path.normpath(os.path.join(os.path.relpath(folder, path), name))
        for folder, _, names in walk(path, external, hidden=True)
        for name in names
    ]


METADATA = {".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"}
CHUNK = re.compile(r"(c/)?\d+([./]\d+)*|c")


def check_chunks(path: Path, files: list[str], arrays: list[str], account: Account) -> None:
    """Each file of a store is one of zarr's, and no chunk is empty."""
    known = set(arrays)
    for file in files:
        above, _, name = file.rpartition("/")
        if name in METADATA:
            kind = json.loads((path / file).read_bytes()).get("node_type") if name == "zarr.json" else name
            is_array = kind in ("array", ".zarray")
            if is_array and above not in known:
                account.leave("arrays", printable(above), "zarr does not list it; its groups may lack their metadata")
            continue
        parts = file.split("/")
        chunk = any("/".join(parts[:k]) in known and CHUNK.fullmatch("/".join(parts[k:])) for k in range(len(parts)))
        if not chunk and not any(fnmatch(name, own) for own in OF_SYSTEMS):
            account.leave("files", printable(file), "no part of an array")
        if re.fullmatch(r"\d+(\.\d+)*", name) and not (path / file).stat().st_size:
            raise ConfigError(f"{path / file} is empty, which zarr reads as one that was never written; copy it again")


N5_OWN = {"dimensions", "dataType", "blockSize", "compression", "compressionType", "n5"}


def open_n5(path: Path, options: PackOptions) -> ArraySource:
    store = need("tensorstore", f"reading {path}", "tensorstore")
    found: dict[str, Any] = {}
    attrs: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    account = Account()
    for name in sorted(files_of(path, options.external)):
        file = path / name
        if file.name != "attributes.json":
            continue
        try:
            said = json.loads(file.read_text())
            is_array = "dimensions" in said
        except ValueError as error:
            raise ConfigError(f"{file} is no valid JSON: {error}") from None
        own = {key: value for key, value in said.items() if key not in N5_OWN}
        place = "" if file.parent == path else str(file.parent.relative_to(path))
        if is_array:
            spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{file.parent}/"}}
            found[place or path.stem] = StoreRows(store.open(spec, read=True).result(), options.reverse_axes)
            attrs[place or path.stem] = own
        else:
            groups[place] = own
    if (
        not options.reverse_axes
        and len({len(a) for a in found.values()}) > 1
        and len({a.shape[-1] for a in found.values()}) == 1
    ):
        shapes = {name: a.shape for name, a in found.items()}
        raise ConfigError(
            f"{path}: the last dimensions agree, not the first: {shapes}; --reverse-axes counts rows there"
        )
    return tables_of(path, found, options, account, attrs, groups)


def tables_of(
    path: Path,
    arrays: dict[str, Any],
    options: PackOptions,
    account: Account,
    attrs: dict[str, dict[str, Any]],
    groups: dict[str, dict[str, Any]],
) -> ArraySource:
    """train/x, train/y, test/x ... are splits; anything else is one set. attrs, groups: attributes of each array and
    group."""
    if not arrays:
        raise ConfigError(f"{path} holds no arrays with rows")
    parts = {name: name.split("/", 1) for name in arrays}
    splits = all(len(part) == 2 and part[0].lower() in SPLIT_NAMES for part in parts.values())
    tables: dict[str, dict[str, Any]]
    if splits:
        tables = by_split(arrays, {name: (part[0], part[1]) for name, part in parts.items()}, path)
    else:
        tables = {"": {n: a for n, a in arrays.items() if not options.fields or n in options.fields}}
    if not any(tables.values()):
        raise ConfigError(f"--fields: {path} has none of {sorted(options.fields)}; it has {sorted(arrays)}")

    def place(name: str) -> tuple[str, str]:
        top, _, rest = name.partition("/")
        return (SPLIT_NAMES[top.lower()], rest) if splits and top.lower() in SPLIT_NAMES else ("", name)

    files = sorted(p for p in path.rglob("*.json") if p.is_file()) or sorted(path.rglob(".z*")) or [path]
    stats = [[str(path.resolve()), len(arrays)], *([str(f.name), f.stat().st_mtime_ns] for f in files[:1000])]
    source = ChunkedSource(tables, stats, {})
    source.account = account
    source.field_attrs = {
        place(name): attributes(own, name, account)
        for name, own in attrs.items()
        if not options.fields or place(name)[1] in options.fields
    }
    named = {"/".join(filter(None, place(name))): attributes(own, name or "/", account) for name, own in groups.items()}
    source.group_attrs = {name: own for name, own in named.items() if own}
    return source
