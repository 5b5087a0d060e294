"""Read files of arrays: a .npy or .npz file, a folder of .npy files (one per field), or a file of torch.save with a
tensor, or a (nested) dict or tuple of tensors. No code in such a file is run."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, printable
from h5rows.importers.folders import files_of
from h5rows.importers.values import explain, load_torch, read_npy, to_numpy
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, ArraySource

MOST_COLUMNS = 16
_SPLIT = "|".join(SPLIT_NAMES)
_IN_NAME = re.compile(rf"(?:(?P<a>{_SPLIT})[_/.-](?P<x>.+)|(?P<y>.+)[_/.-](?P<b>{_SPLIT}))", re.IGNORECASE)


def places_of(names: Collection[str], path: Path, options: PackOptions) -> dict[str, tuple[str, str]]:
    """Return {name of an array: (split, field)}. Names such as x_train, train/y, x_test are split, if all have this
    form and options.fields does not name the arrays themselves."""
    if options.fields and set(options.fields) <= set(names):
        return {name: ("", name) for name in options.fields}
    matches = [_IN_NAME.fullmatch(name) for name in names]
    if not all(matches):
        return {name: ("", name) for name in names}
    found: dict[str, tuple[str, str]] = {}
    for name, m in zip(names, matches, strict=True):
        place = SPLIT_NAMES[(m["a"] or m["b"]).lower()], m["x"] or m["y"]  # type: ignore[index]
        if first := next((other for other, there in found.items() if there == place), None):
            raise ConfigError(f"{path}: {first!r} and {name!r} are both {place[1]!r} of {place[0]}; rename one")
        found[name] = place
    return found


def tables_of(arrays: Mapping[str, Any], places: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return {split: {field: array}}."""
    tables: dict[str, dict[str, Any]] = {}
    for name, (split, field) in places.items():
        tables.setdefault(split, {})[field] = arrays[name]
    return tables


def open_numpy(path: Path, options: PackOptions) -> ArraySource:
    """Open .npy files, memory-mapped, or an .npz file, loaded into memory."""
    account = Account()
    files = [path]
    if path.is_dir():
        files = files_of(path, lambda name: name.endswith(".npy"), "not .npy", options.external, account)
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path, options.fields, account)
    else:
        names = [str(f.relative_to(path).with_suffix("")) if path.is_dir() else f.stem for f in files]
        arrays = {name: read_npy(str(f), f, mapped=True) for name, f in zip(names, files, strict=True)}
    if not arrays:
        raise ConfigError(f"{path} contains no .npy files")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ConfigError(f"{path}: {name} is a single number, not rows; choose others with fields=")
    check_fields(arrays, path, options)
    return ArraySource(tables_of(arrays, places_of(arrays, path, options)), account=account, origin=path)


def check_fields(arrays: Mapping[str, Any], path: Path, options: PackOptions) -> None:
    """Raise ConfigError if arrays of one shape and type could be samples, because each would become a field."""
    kinds, stems = {(a.shape, str(a.dtype)) for a in arrays.values()}, {re.sub(r"\d+", "", name) for name in arrays}
    if options.fields or len(arrays) < 3 or len(kinds) > 1 or (len(stems) > 1 and len(arrays) <= MOST_COLUMNS):
        return
    (shape, dtype), (first, second, *_) = kinds.pop(), arrays
    what = f"{path} contains {len(arrays)} arrays of {shape} {dtype}: {printable(first)}, {printable(second)}, ..."
    how = "use format='samples'" if path.is_dir() else "save them stacked as one array"
    raise ConfigError(f"{what}; if each is a sample, {how}; if each is a field, name them with fields=")


def read_npz(path: Path, wanted: Mapping[str, str], account: Account) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. wanted: only these, if all are members; otherwise all."""
    try:
        with np.load(path, allow_pickle=False) as loaded, zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if twice := next((m for m in members if members.count(m) > 1), None):
                raise ValueError(f"has two members {twice!r}")
            names = [member[: -len(".npy")] for member in members if member.endswith(".npy")]
            for member in members:
                if not member.endswith((".npy", "/")):
                    account.leave("members", printable(member), "not .npy")
            names = [n for n in names if n in wanted] if wanted and set(wanted) <= set(names) else names
            return {name: loaded[name] for name in names}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as .npz: {explain(error)}") from None


def open_torch(path: Path, options: PackOptions) -> ArraySource:
    """Open a file of torch.save, memory-mapped."""
    account = Account()
    values = flatten(load_torch(str(path), path, mapped=True), path, account)
    if not values:
        named = next(iter(account.left.get("values", [])), "nothing")
        raise ConfigError(f"{path} contains no tensors with rows, only {printable(named)}")
    check_fields(values, path, options)
    return ArraySource(tables_of(values, places_of(values, path, options)), account=account, origin=path)


def check_list(items: Sequence[Any], path: Path, name: str) -> None:
    """Raise ConfigError if a list contains samples, because each would become a field."""
    kinds = {kind_of(item) for item in items}
    same_pair = isinstance(items, tuple) and len(items) == 2 and all(hasattr(item, "detach") for item in items)
    if len(items) < 2 or len(kinds) > 1 or same_pair or not (kind := kinds.pop()):
        return
    what = f"{path}: {name or 'it'} is a {type(items).__name__} of {len(items):,} {kind.partition(' ')[0]} of one kind"
    remedy = "if each is a sample, save {name: torch.stack(...)}, one tensor per field; if each is a field, save a dict"
    raise ConfigError(f"{what}; {remedy}")


def kind_of(item: Any) -> str:
    """Return type and shape of an item, equal for all samples of a list; "" if it cannot be a sample."""
    if hasattr(item, "detach"):
        return f"tensors {item.dtype} {item.ndim}"
    if isinstance(item, dict):
        return f"dicts {sorted(map(str, item))}"
    return f"{type(item).__name__}s {len(item)}" if isinstance(item, (tuple, list)) else ""


def flatten(value: Any, path: Path, account: Account, name: str = "") -> dict[str, np.ndarray]:
    """Return {name: array} of nested tensors. Names are joined by /, items of a tuple are field0, field1 ... Other
    values are left out."""
    if hasattr(value, "detach"):
        if value.ndim == 0:
            account.leave("values", name or "the tensor", f"the single number {value.item()}")
            return {}
        try:
            return {name or path.stem: to_numpy(value)}
        except ValueError as error:
            raise ConfigError(f"{path}: {name or 'it'} {error}") from None
    if isinstance(value, (tuple, list)):
        check_list(value, path, name)
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (tuple, list)) and len(value) <= 100:
        items = [(f"field{k}", v) for k, v in enumerate(value)]
    else:
        account.leave("values", name or "it", f"a {type(value).__name__}, not a tensor")
        return {}
    out: dict[str, np.ndarray] = {}
    for key, item in items:
        found = flatten(item, path, account, f"{name}/{key}" if name else key)
        if twice := next((n for n in found if n in out), None):
            raise ConfigError(f"{path} contains two tensors named {twice!r}; rename one")
        out |= found
    return out
