"""Foreign formats, one small file each. `open_source` finds out which."""

from __future__ import annotations

import importlib
import os
from glob import glob
from pathlib import Path

import h5py

from h5rows.errors import ConfigError
from h5rows.importers.arrays import MOST_COLUMNS
from h5rows.importers.folders import check_kind, walk
from h5rows.importers.values import WIDENED
from h5rows.options import FOR_FORMATS, PackOptions
from h5rows.source import SPLIT_NAMES, Source, one_line

# format -> module and what opens it, (path, options) -> Source; suffixes of its files
FORMATS = {
    "images": ("files", "open_images", ""),
    "numpy": ("arrays", "open_numpy", ".npy .npz"),
    "torch": ("arrays", "open_torch", ".pth .pt"),
    "samples": ("files", "open_samples", ""),
    "lmdb": ("lmdb_env", "LmdbSource", ".lmdb .mdb"),
    "zarr": ("chunked", "open_chunked", ".zarr"),
    "n5": ("chunked", "open_chunked", ".n5"),
    "tfrecord": ("tfrecord", "RecordSource", ".tfrecord .tfrecords"),
    "webdataset": ("webdataset", "TarSource", ".tar"),
    "table": ("tables", "open_table", ".csv .tsv .parquet"),
    "text": ("text", "open_text", ".txt"),
}
BY_SUFFIX = {suffix: kind for kind, (_, _, suffixes) in FORMATS.items() for suffix in suffixes.split()}
SHARDED = ("tfrecord", "webdataset", "table", "text")  # several files are one set


def open_source(path: str, options: PackOptions) -> Source:
    where = Path(path)
    first = where if where.exists() else next((Path(p) for p in sorted(glob(path))), None)
    if first is None:
        raise ConfigError(f"{path} does not exist")
    check_kind(first)
    kind = recognise(first, options) if options.format == "auto" else options.format
    if kind not in FORMATS:
        raise ConfigError(f"format=: {kind!r} is none of {', '.join(FORMATS)}")
    if first is not where and kind not in SHARDED:
        raise ConfigError(f"{path}: a pattern may name shards of {', '.join(SHARDED)}; of {kind} give a file or folder")
    options.check_for((name for name, kinds in FOR_FORMATS.items() if kind not in kinds), f"{path}, of format {kind},")
    module, function, _ = FORMATS[kind]
    opener = getattr(importlib.import_module(f"h5rows.importers.{module}"), function)
    WIDENED.clear()
    with one_line(path):
        source: Source = opener(where, options)
    source.account.notes += [f"{kind} becomes float32, which holds the same values" for kind in sorted(WIDENED)]
    source.origin = path
    return source


def recognise(path: Path, options: PackOptions) -> str:
    if path.is_file():
        if kind := BY_SUFFIX.get(path.suffix.lower()):
            return kind
        if path.suffix in (".h5", ".hdf5") or h5py.is_hdf5(path):  # MATLAB's, netCDF's, ...
            problem = f"{path} is HDF5 already, and needs no packing"
            raise ConfigError(f"{problem}: `inspect` says what trains on it, `repack` changes its layout")
        if ".tfrecord" in path.name:  # name.tfrecord-00000-of-00010
            return "tfrecord"
        raise ConfigError(f"{path}: no format has the suffix {path.suffix!r}; give format= ({', '.join(FORMATS)})")
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if "data.mdb" in names:
        return "lmdb"
    if path.suffix == ".zarr" or any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return "zarr"
    if path.suffix == ".n5" or (path / "attributes.json").exists():
        return "n5"
    return recognise_folder(path, options)


def recognise_folder(path: Path, options: PackOptions) -> str:
    """By the suffixes in it. Text and tables beside images or arrays describe these. Arrays in class folders are
    samples, in a flat folder columns."""
    found: dict[str, str] = {}  # kind -> the first file of it
    empty = True
    for folder, _, names in walk(path, options.external):
        empty = empty and not names
        for name in names:
            if (kind := kind_in_folder(name)) and kind not in found:
                found[kind] = os.path.relpath(os.path.join(folder, name), path)
    if {"images", "arrays"} & set(found):
        found = {kind: file for kind, file in found.items() if kind not in ("text", "table")}
    if len(found) > 1:
        listed = ", ".join(f"{kind} ({file})" for kind, file in sorted(found.items()))
        raise ConfigError(f"{path} holds several kinds: {listed}; move one away, or say which with format=")
    if not found:
        what = "is an empty folder" if empty else "holds no files of a known format"
        raise ConfigError(f"{path} {what}; known: {', '.join(FORMATS)} (say which with format=)")
    kind, file = next(iter(found.items()))
    if kind == "arrays":
        columns = file.lower().endswith(".npy") and not options.variable and are_columns(path, options.external)
        return "numpy" if columns else "samples"
    return kind


def kind_in_folder(name: str) -> str:
    from h5rows.importers.images import SUFFIXES

    kinds = {**dict.fromkeys(SUFFIXES, "images"), **dict.fromkeys((".npy", ".pth", ".pt"), "arrays")}
    kinds |= {suffix: BY_SUFFIX[suffix] for suffix in (".txt", ".tar", ".parquet", ".csv", ".tsv")}
    return kinds.get(os.path.splitext(name)[1].lower()) or ("tfrecord" if ".tfrecord" in name else "")


def are_columns(path: Path, external: str) -> bool:
    """x.npy, y.npy ... in the folder itself; or train/x.npy, test/x.npy: the same few names in the folder of each
    split. Else each file is a sample."""
    names: dict[Path, set[str]] = {}
    for folder, _, files in walk(path, external):
        if found := {name for name in files if name.endswith(".npy")}:
            names[Path(folder)] = found
    if set(names) == {path}:
        return True
    splits = all(folder.parent == path and folder.name.lower() in SPLIT_NAMES for folder in names)
    return splits and len(set(map(frozenset, names.values()))) == 1 and len(next(iter(names.values()))) <= MOST_COLUMNS
