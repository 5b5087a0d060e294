"""Foreign formats, one small file each. `open_source` finds out which."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from glob import glob
from pathlib import Path

from lab.errors import ConfigError
from lab.packing.importers.base import SPLIT_NAMES, Source
from lab.packing.options import PackOptions

# format -> module and function: (path, options) -> Source
OPENERS = {
    "images": ("images", "open_folder"),
    "numpy": ("arrays", "open_numpy"),
    "torch": ("torch_file", "open_torch"),
    "samples": ("sample_files", "open_samples"),
    "lmdb": ("lmdb_env", "open_lmdb"),
    "zarr": ("zarr_store", "open_zarr"),
    "n5": ("zarr_store", "open_n5"),
    "tfrecord": ("tfrecord", "open_tfrecord"),
    "webdataset": ("webdataset", "open_webdataset"),
    "table": ("tables", "open_table"),
    "text": ("text", "open_text"),
}
BY_SUFFIX = {
    ".npy": "numpy",
    ".npz": "numpy",
    ".pth": "torch",
    ".pt": "torch",
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
    ".zarr": "zarr",
    ".n5": "n5",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tar": "webdataset",
    ".csv": "table",
    ".parquet": "table",
    ".txt": "text",
}


MOST_COLUMNS = 16
SHARDED = ("tfrecord", "webdataset", "table", "text")  # several files are one set


def open_source(path: str, options: PackOptions) -> Source:
    where = Path(path)
    first = where if where.exists() else next((Path(p) for p in sorted(glob(path))), None)
    if first is None:
        raise ConfigError(f"{path} does not exist")
    kind = recognise(first, options.variable) if options.format == "auto" else options.format
    if kind not in OPENERS:
        raise ConfigError(f"--format: {kind!r} is none of {', '.join(OPENERS)}")
    if first is not where and kind not in SHARDED:
        raise ConfigError(f"{path}: a pattern may name shards of {', '.join(SHARDED)}; of {kind} give a file or folder")
    module, function = OPENERS[kind]
    opener: Callable[[Path, PackOptions], Source] = getattr(
        importlib.import_module(f"lab.packing.importers.{module}"), function
    )
    return opener(where, options)


def recognise(path: Path, variable: bool) -> str:
    if path.is_file():
        if path.suffix in (".h5", ".hdf5"):
            raise ConfigError(f"{path} is HDF5 already: `repack` changes its layout")
        if kind := BY_SUFFIX.get(path.suffix.lower()):
            return kind
        if ".tfrecord" in path.name:  # name.tfrecord-00000-of-00010
            return "tfrecord"
        raise ConfigError(
            f"{path}: no format has the suffix {path.suffix!r}; say which with --format ({', '.join(OPENERS)})"
        )
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if "data.mdb" in names:
        return "lmdb"
    if {"zarr.json"} & set(names) or any((path / n).exists() for n in (".zgroup", ".zarray")):
        return "zarr"
    if path.suffix == ".n5" or (path / "attributes.json").exists():
        return "n5"
    return recognise_folder(path, variable)


def recognise_folder(path: Path, variable: bool) -> str:
    """By the first file of a known suffix in it. Arrays in class folders are samples, in a flat folder columns."""
    from lab.packing.importers.images import SUFFIXES

    files = (p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    empty = True
    for file in files:
        empty = False
        suffix = file.suffix.lower()
        if suffix in SUFFIXES:
            return "images"
        if suffix in (".npy", ".pth", ".pt"):
            return "numpy" if suffix == ".npy" and not variable and are_columns(path) else "samples"
        if suffix in (".txt", ".tar", ".parquet"):
            return BY_SUFFIX[suffix]
        if ".tfrecord" in file.name:
            return "tfrecord"
    what = "is an empty folder" if empty else "holds no files of a known format"
    raise ConfigError(f"{path} {what}; known: {', '.join(OPENERS)} (say which with --format)")


def are_columns(path: Path) -> bool:
    """x.npy, y.npy ... in the folder itself; or train/x.npy, test/x.npy: the same few names in the folder of each
    split. Else each file is a sample."""
    names: dict[Path, set[str]] = {}
    for file in path.rglob("*.npy"):
        names.setdefault(file.parent, set()).add(file.name)
    if set(names) == {path}:
        return True
    splits = all(folder.parent == path and folder.name.lower() in SPLIT_NAMES for folder in names)
    return splits and len(set(map(frozenset, names.values()))) == 1 and len(next(iter(names.values()))) <= MOST_COLUMNS
