"""zarr through zarr, N5 through tensorstore: arrays with the rows first, in groups that may be splits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ConfigError
from engine.extras import need
from engine.packing.importers.base import SPLIT_NAMES, ArraySource
from engine.packing.options import PackOptions


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
    zarr = need("zarr", f"reading {path}", "zarr", "zarr")
    check_blosc()
    try:
        root = zarr.open(str(path), mode="r")
    except Exception as error:  # zarr raises its own, KeyError, ValueError ...
        raise ConfigError(f"{path} cannot be opened as zarr: {error}") from None
    found = {path.stem: root} if hasattr(root, "shape") else {}
    if not found:
        found = {name: item for name, item in root.members(max_depth=None) if hasattr(item, "shape")}
    for file in path.rglob("*"):
        if re.fullmatch(r"\d+(\.\d+)*", file.name) and file.is_file() and not file.stat().st_size:
            raise ConfigError(f"{file} is empty, which zarr reads as a shard that was never written; copy it again")
    return tables_of(path, {name: ZarrRows(a) for name, a in found.items() if a.shape}, options)


def open_n5(path: Path, options: PackOptions) -> ArraySource:
    store = need("tensorstore", f"reading {path}", "tensorstore", "n5")
    found = {}
    for file in sorted(path.rglob("attributes.json")):
        try:
            is_array = "dimensions" in json.loads(file.read_text())
        except ValueError as error:
            raise ConfigError(f"{file} is no valid JSON: {error}") from None
        if is_array:
            spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{file.parent}/"}}
            name = str(file.parent.relative_to(path)) if file.parent != path else path.stem
            found[name] = StoreRows(store.open(spec, read=True).result(), options.reverse_axes)
    if (
        not options.reverse_axes
        and len({len(a) for a in found.values()}) > 1
        and len({a.shape[-1] for a in found.values()}) == 1
    ):
        shapes = {name: a.shape for name, a in found.items()}
        raise ConfigError(
            f"{path}: the last dimensions agree, not the first: {shapes}; --reverse-axes counts rows there"
        )
    return tables_of(path, found, options)


def tables_of(path: Path, arrays: dict[str, Any], options: PackOptions) -> ArraySource:
    """train/x, train/y, test/x ... are splits; anything else is one set."""
    if not arrays:
        raise ConfigError(f"{path} holds no arrays with rows")
    tables: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        top, _, rest = name.partition("/")
        if top.lower() not in SPLIT_NAMES or not rest:
            tables = {"": {n: a for n, a in arrays.items() if not options.fields or n in options.fields}}
            break
        tables.setdefault(SPLIT_NAMES[top.lower()], {})[rest] = array
    files = sorted(p for p in path.rglob("*.json") if p.is_file()) or sorted(path.rglob(".z*")) or [path]
    stats = [[str(path.resolve()), len(arrays)], *([str(f.name), f.stat().st_mtime_ns] for f in files[:1000])]
    if not any(tables.values()):
        raise ConfigError(f"--fields: {path} has none of {sorted(options.fields)}; it has {sorted(arrays)}")
    return ChunkedSource(tables, stats, {})
