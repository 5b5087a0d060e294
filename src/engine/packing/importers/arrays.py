"""NumPy files: one .npy, one .npz, or a folder of .npy files that are the columns of one set."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np

from engine.errors import ConfigError
from engine.packing.importers.base import SPLIT_NAMES, ArraySource, printable
from engine.packing.importers.folders import check_kind, walk
from engine.packing.options import PackOptions

_SPLIT = "|".join(SPLIT_NAMES)
_IN_NAME = re.compile(rf"(?:(?P<a>{_SPLIT})[_/.-](?P<x>.+)|(?P<y>.+)[_/.-](?P<b>{_SPLIT}))", re.IGNORECASE)


def split_names(arrays: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """x_train, y_train, x_test ... -> {train: {x, y}, test: {x, ...}}; any name without a split: no splits."""
    tables: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        match = _IN_NAME.fullmatch(name)
        if not match:
            return {"": arrays}
        split = SPLIT_NAMES[(match["a"] or match["b"]).lower()]
        tables.setdefault(split, {})[match["x"] or match["y"]] = array
    return tables


def open_numpy(path: Path, options: PackOptions) -> ArraySource:
    """Mapped, not loaded (a compressed .npz is loaded: it has no rows to map)."""
    files = sorted(path.rglob("*.npy")) if path.is_dir() else [path]
    for file in files:
        check_kind(file)
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path)
    else:
        arrays = {str(f.relative_to(path).with_suffix("")) if path.is_dir() else f.stem: read_npy(f) for f in files}
    if not arrays:
        raise ConfigError(f"{path} holds no .npy files")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ConfigError(f"{path}: {name} is a single number, not rows; choose others with --fields")
    if options.fields and set(options.fields) <= set(arrays):  # names given in full switch the search for splits off
        arrays = {name: arrays[name] for name in options.fields}
        tables = {"": arrays}
    else:
        tables = split_names(arrays)
    if path.is_dir() and not options.quiet:
        others = [n for _, _, names in walk(path) for n in names if not n.endswith(".npy")]
        if others:
            print(f"left out: {len(others)} files that are no .npy ({printable(', '.join(others[:3]))})")
    stats = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    return ArraySource(tables, stats, {})


def read_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read as .npy: {explain(error)}") from None


def read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as loaded, zipfile.ZipFile(path) as archive:
            return {
                name: _map_member(path, archive.getinfo(f"{name}.npy")) if _stored(archive, name) else loaded[name]
                for name in loaded.files
            }
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as .npz: {explain(error)}") from None


def explain(error: Exception) -> str:
    if "pickle" in str(error):
        return "it holds Python objects, which could run code when read; save plain arrays"
    return str(error)


def _stored(archive: zipfile.ZipFile, name: str) -> bool:
    return archive.getinfo(f"{name}.npy").compress_type == zipfile.ZIP_STORED


def _map_member(path: Path, info: zipfile.ZipInfo) -> np.ndarray:
    """An uncompressed member lies in the archive as it is."""
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)
        name_bytes, extra_bytes = np.frombuffer(file.read(4), "<u2").tolist()
        file.seek(name_bytes + extra_bytes, 1)
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if dtype.hasobject:
            raise ValueError("pickle")
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
