"""NumPy files: one .npy, one .npz, or a folder of .npy files that are the columns of one set."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.importers.base import SPLIT_NAMES, ArraySource, printable
from h5rows.importers.folders import files_of
from h5rows.importers.values import stamp
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions

_SPLIT = "|".join(SPLIT_NAMES)
_IN_NAME = re.compile(rf"(?:(?P<a>{_SPLIT})[_/.-](?P<x>.+)|(?P<y>.+)[_/.-](?P<b>{_SPLIT}))", re.IGNORECASE)


def tables_of(arrays: dict[str, np.ndarray], path: Path, options: PackOptions) -> dict[str, dict[str, np.ndarray]]:
    """x_train, train/y, x_test ... -> {train: {x, y}, test: {x, ...}}; any name without a split: no splits. Names that
    --fields gives in full are no splits either."""
    if options.fields and set(options.fields) <= set(arrays):
        return {"": {name: arrays[name] for name in options.fields}}
    matches = {name: _IN_NAME.fullmatch(name) for name in arrays}
    if not all(matches.values()):
        return {"": arrays}
    parts = {name: ((m["a"] or m["b"]), (m["x"] or m["y"])) for name, m in matches.items() if m}
    return by_split(arrays, parts, path)


def by_split(arrays: Mapping[str, Any], parts: Mapping[str, tuple[str, str]], path: Path) -> dict[str, dict[str, Any]]:
    """parts: name -> (word for its split, name in it). Two arrays of one place would be one."""
    tables: dict[str, dict[str, Any]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, (word, field) in parts.items():
        place = SPLIT_NAMES[word.lower()], field
        if (first := names.setdefault(place, name)) != name:
            raise ConfigError(f"{path}: {first!r} and {name!r} are both {field!r} of {place[0]}; rename one")
        tables.setdefault(place[0], {})[field] = arrays[name]
    return tables


def open_numpy(path: Path, options: PackOptions) -> ArraySource:
    """A .npy is mapped, the arrays of an .npz are loaded."""
    account = Account()
    files = [path]
    if path.is_dir():
        files = files_of(path, lambda name: name.endswith(".npy"), "no .npy", options.external, account)
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path, options.fields, account)
    else:
        arrays = {str(f.relative_to(path).with_suffix("")) if path.is_dir() else f.stem: read_npy(f) for f in files}
    if not arrays:
        raise ConfigError(f"{path} holds no .npy files")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ConfigError(f"{path}: {name} is a single number, not rows; choose others with --fields")
    source = ArraySource(tables_of(arrays, path, options), stamp(files), {})
    source.account = account
    return source


def read_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read as .npy: {explain(error)}") from None


def read_npz(path: Path, wanted: Mapping[str, str], account: Account) -> dict[str, np.ndarray]:
    """wanted: those that --fields names, if it names members of this archive; none: all."""
    try:
        with np.load(path, allow_pickle=False) as loaded, zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if twice := next((m for m in members if members.count(m) > 1), None):
                raise ValueError(f"it has two members {twice!r}")
            names = [member[: -len(".npy")] for member in members if member.endswith(".npy")]
            for member in members:
                if not member.endswith((".npy", "/")):
                    account.leave("members", printable(member), "no .npy")
            names = [n for n in names if n in wanted] if wanted and set(wanted) <= set(names) else names
            return {name: loaded[name] for name in names}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as .npz: {explain(error)}") from None


def explain(error: Exception) -> str:
    if "pickle" in str(error):
        return "it holds Python objects, which could run code when read; save plain arrays"
    return str(error)
