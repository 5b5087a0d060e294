"""Read other formats as sources of the writer. `open_source` detects the format.

Input: a path or pattern, and PackOptions. Output: a `Source` with named fields, splits and rows by number.
Guarantees: a value that HDF5 cannot store exactly raises an error or is named in the account. No code of a file is run,
and links that lead out of the source are not followed unless external="allow".
Errors: ConfigError, which names the file and the sample, and the option that decides.

    files         folders of images, or of one .npy or .pth file per sample
    folders       list the files below a folder
    images        decode images
    arrays        .npy, .npz and .pth files of arrays
    chunked       zarr and N5
    lmdb_env      LMDB
    tfrecord      TFRecord
    webdataset    tar files of samples
    tables        CSV and Parquet: fields from columns
    table_groups  rows of CSV and Parquet files by number
    csv_file      parse CSV files
    text          text files as streams of tokens
    values        decode encoded samples; sets of shards
"""

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

# format -> module, function (path, options) -> Source, suffixes of its files
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
SHARDED = ("tfrecord", "webdataset", "table", "text")  # several files are shards of one set


def open_source(path: str, options: PackOptions) -> Source:
    """Return the source of a path or pattern. Raise ConfigError for an unknown format, or options of other formats."""
    where = Path(path)
    first = where if where.exists() else next((Path(p) for p in sorted(glob(path))), None)
    if first is None:
        raise ConfigError(f"{path} does not exist")
    check_kind(first)
    kind = recognise(first, options) if options.format == "auto" else options.format
    if kind not in FORMATS:
        raise ConfigError(f"format=: {kind!r} is not one of {', '.join(FORMATS)}")
    if first is not where and kind not in SHARDED:
        raise ConfigError(f"{path}: patterns are for shards of {', '.join(SHARDED)}; for {kind} give a file or folder")
    options.check_for((name for name, kinds in FOR_FORMATS.items() if kind not in kinds), f"{path} (format {kind})")
    module, function, _ = FORMATS[kind]
    opener = getattr(importlib.import_module(f"h5rows.importers.{module}"), function)
    WIDENED.clear()
    with one_line(path):
        source: Source = opener(where, options)
    source.account.notes += [f"{kind} becomes float32, which has the same values" for kind in sorted(WIDENED)]
    source.origin = path
    return source


def recognise(path: Path, options: PackOptions) -> str:
    """Return the format of a file or folder by its name and content. Raise ConfigError if it is unknown."""
    if path.is_file():
        if kind := BY_SUFFIX.get(path.suffix.lower()):
            return kind
        if path.suffix in (".h5", ".hdf5") or h5py.is_hdf5(path):  # also of MATLAB, netCDF ...
            problem = f"{path} is an HDF5 file and need not be packed"
            raise ConfigError(f"{problem}: `inspect` prints how to train on it, `repack` changes its layout")
        if ".tfrecord" in path.name:  # name.tfrecord-00000-of-00010
            return "tfrecord"
        what = f"{path}: unknown suffix {path.suffix!r}; give format= ({', '.join(FORMATS)})"
        raise ConfigError(f"{what}, or read another format in Python and give its samples to h5rows.write")
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if "data.mdb" in names:
        return "lmdb"
    if path.suffix == ".zarr" or any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return "zarr"
    if path.suffix == ".n5" or (path / "attributes.json").exists():
        return "n5"
    return recognise_folder(path, options)


def recognise_folder(path: Path, options: PackOptions) -> str:
    """Return the format of a folder by its suffixes. Text and tables are ignored if there are images or arrays. Arrays
    in class folders are samples, those in a flat folder are columns."""
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
        raise ConfigError(f"{path} contains several kinds: {listed}; move one away, or choose one with format=")
    if not found:
        what = "is an empty folder" if empty else "contains no files of a known format"
        raise ConfigError(f"{path} {what}; known: {', '.join(FORMATS)} (choose with format=)")
    kind, file = next(iter(found.items()))
    if kind == "arrays":
        columns = file.lower().endswith(".npy") and not options.variable and are_columns(path, options.external)
        return "numpy" if columns else "samples"
    return kind


def kind_in_folder(name: str) -> str:
    """Return the kind of a file by its suffix; "" if it is unknown."""
    from h5rows.importers.images import SUFFIXES

    kinds = {**dict.fromkeys(SUFFIXES, "images"), **dict.fromkeys((".npy", ".pth", ".pt"), "arrays")}
    kinds |= {suffix: BY_SUFFIX[suffix] for suffix in (".txt", ".tar", ".parquet", ".csv", ".tsv")}
    return kinds.get(os.path.splitext(name)[1].lower()) or ("tfrecord" if ".tfrecord" in name else "")


def are_columns(path: Path, external: str) -> bool:
    """Return True for x.npy, y.npy ... in the folder itself, or for the same few names in the folder of each split,
    such as train/x.npy and test/x.npy. Otherwise each file is a sample."""
    names: dict[Path, set[str]] = {}
    for folder, _, files in walk(path, external):
        if found := {name for name in files if name.endswith(".npy")}:
            names[Path(folder)] = found
    if set(names) == {path}:
        return True
    splits = all(folder.parent == path and folder.name.lower() in SPLIT_NAMES for folder in names)
    return splits and len(set(map(frozenset, names.values()))) == 1 and len(next(iter(names.values()))) <= MOST_COLUMNS
