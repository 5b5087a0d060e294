"""Find a dataset in an open HDF5 file by its path; errors list the existing datasets. No torch."""

from __future__ import annotations

import difflib
from contextlib import suppress
from posixpath import dirname
from typing import Any

import h5py
import numpy as np

from h5rows.errors import ConfigError, argument, as_typed, printable
from h5rows.reading import filters
from h5rows.reading.external import ALLOW_EXTERNAL, check_external, check_links, items_below
from h5rows.reading.opening import named, unreadable
from h5rows.reading.stored import File, Stored, dtype_of, stored
from h5rows.reading.texts import UTF_8, name_of

_LISTED = 24


def find(
    file: h5py.File, group: str, name: str, key: str, external: str
) -> tuple[h5py.Dataset | h5py.Group, str | None]:
    """Return the dataset (or group) `name`, and the member if the path continues into a compound type, otherwise None.

    name: relative to `group`, or to the root if it begins with /. key: the name of the argument in messages. external:
    refuse or allow paths to other files. Raise ConfigError if it does not exist; the error lists similar names.
    """
    for what, text in (("group", group), ("dataset", name)):
        if not isinstance(text, str):
            raise ConfigError(f"{key}: expected the name of a {what}, got {text}")
    with named(f"{file.filename}: {name} ({key})"):
        return _find(file, group, name, key, external)


def stated_classes(item: h5py.Dataset | h5py.Group) -> Any:
    """Return the attribute `classes` of a dataset, its group or its file: names (N,), or their number; None if there is
    none."""
    if h5py.h5a.exists(item.id, b"classes"):
        return item.attrs["classes"]
    for owner in dict.fromkeys((item.parent.name if item.name is None else dirname(item.name), "/")):
        if h5py.h5a.exists(item.id, b"classes", obj_name=owner.encode()):  # opening owners takes ten times as long
            return item.file[owner].attrs["classes"]
    return None


UNREADABLE = -1  # number of classes


def classes_of(item: h5py.Dataset | h5py.Group, encoding: str = UTF_8) -> tuple[list[str] | None, int | None]:
    """Return the names in the attribute `classes`, and the number of classes in it; None if there are none.

    Return (None, UNREADABLE) if it cannot be read, because a damaged attribute must not prevent reading the data.
    """
    try:
        classes = stated_classes(item)
        if np.ndim(classes) == 1:
            return [name_of(name, encoding) for name in classes], len(classes)
        return None, None if classes is None else int(classes)
    except (OSError, RuntimeError, LookupError, TypeError, ValueError):
        return None, UNREADABLE


NOT_UTF_8 = "has a name that is not UTF-8; rename it, file.move(b'...', 'NAME')"  # h5py returns such names as bytes


def _find(file: h5py.File, group: str, name: str, key: str, external: str) -> tuple[Any, str | None]:
    if printable(path := f"{group}/{name}") != path:
        raise ConfigError(printable(f"{file.filename}: {name} ({key}) {NOT_UTF_8}"))
    check_links(file, group, external, f"{file.filename}: {group} ({key})")
    try:
        top = file[group]
    except (KeyError, ValueError) as error:
        if "doesn't exist" not in str(error):
            raise unreadable(f"{file.filename}: the group {group} ({key})", error) from error
        remedy = f"correct {argument('splits.<split>.group')}, or set the split to {as_typed(None)} if there is none"
        if not key.startswith(argument("splits")) and not ConfigError.group:
            remedy = "give another split= or splits="
        what = f"{file.filename} has no group {group!r} ({key}); {_choices(file, group)}"
        raise ConfigError(f"{what}; {remedy}") from None
    if not isinstance(top, h5py.Group):
        raise ConfigError(f"{file.filename}: {group!r} ({key}) is a dataset, not a group; use its parent group, or '/'")
    item: Any = top
    member: str | None = None
    parts = [part for part in name.split("/") if part]
    if name.startswith("/"):
        item = file
    for k, part in enumerate(parts):
        if isinstance(item, h5py.Dataset):
            member = "/".join(parts[k:])
            check_type(item, key)
            if item.dtype.names and member in item.dtype.names:
                break
            kinds = f"the members {list(item.dtype.names)}" if item.dtype.names else "no members"
            raise ConfigError(f"{file.filename}: {item.name} has {kinds}, not {member!r} ({key})")
        if not isinstance(item, h5py.Group):
            break
        try:
            check_links(item, part, external, f"{file.filename}: {name} ({key})")
            item = _opened(file, item, part, external)
        except (KeyError, RuntimeError) as error:
            if part not in item:
                what = f"{file.filename}: {top.name} has no {name!r} ({key})"
                raise ConfigError(f"{what}; {_choices(top, name)}") from None
            raise unreadable(f"{file.filename}: {name!r} ({key})", error) from error
    if isinstance(item, h5py.Dataset):
        filters.load_plugins(item)
        check_external(item, external)
    if not isinstance(item, (h5py.Dataset, h5py.Group)):
        raise ConfigError(f"{file.filename}: {item.name} ({key}) is a named type, not a dataset; {_choices(top, name)}")
    return item, member


def _opened(file: h5py.File, group: h5py.Group, name: str, external: str) -> Any:
    """Return group[name]; a dataset as one that reads its properties once. The path to it was checked."""
    if external == ALLOW_EXTERNAL:  # it may be in another file
        found = group[name]
        return stored(found) if isinstance(found, h5py.Dataset) else found
    found = h5py.h5o.open(group.id, name.encode("utf-8", "surrogateescape"))
    here = file if isinstance(file, File) else None
    return Stored(found, here) if isinstance(found, h5py.h5d.DatasetID) else group[name]


def check_type(dset: h5py.Dataset, key: str) -> None:
    """Raise ConfigError if NumPy has no type for the dataset. key: the name of the argument in the message."""
    try:
        _ = dset.dtype
    except (TypeError, ValueError) as error:
        what = f"{dset.file.filename}: {dset.name} ({key}) has a type that NumPy does not support"
        raise ConfigError(f"{what} ({error}); write it as another type") from error


def _choices(group: h5py.Group, wanted: str) -> str:
    """Return the nearest name to `wanted`, and some datasets of a group with shape and type, without damaged ones."""
    there: list[str] = []
    for name, item in items_below(group):
        with suppress(OSError, RuntimeError, KeyError, ValueError, TypeError):
            if isinstance(item, h5py.Dataset):
                there.append(f"{name} {item.shape} {dtype_of(item) or 'of another type'}")
        if len(there) >= _LISTED:
            break
    names = [line.split(" ")[0] for line in there]
    groups = [str(name) for name in group] if len(group) < 1000 else []
    others = {*names, *groups} - {wanted}  # a named type is there, but is not a field
    near = difflib.get_close_matches(wanted.strip("/"), others, n=1, cutoff=0.5)
    return f"{f'did you mean {near[0]!r}? It' if near else 'it'} contains: {'; '.join(there) or 'no datasets'}"
