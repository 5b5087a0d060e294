"""Find a dataset in an open HDF5 file by its path; errors say what there is instead. No torch."""

from __future__ import annotations

import difflib
import os
from contextlib import nullcontext, suppress
from typing import Any

import h5py
import numpy as np

from engine.data.reading import filters
from engine.data.reading.external import (
    EXT,
    VDS,
    candidates,
    check_external,
    check_link,
    check_way,
    items_below,
    link_of,
    own_name,
    source_names,
)
from engine.data.reading.opening import check_regular, named, open_h5, unreadable
from engine.errors import ConfigError


def listing(group: h5py.Group, limit: int = 24) -> list[str]:
    """Names of the datasets below a group, with shape and type."""
    found: list[str] = []
    for name, item in items_below(group):
        with suppress(OSError, RuntimeError, KeyError, ValueError, TypeError):  # what is damaged is left out
            if isinstance(item, h5py.Dataset):
                found.append(f"{name} {item.shape} {type_name(item)}")
        if len(found) >= limit:
            break
    return found


def type_name(dset: h5py.Dataset) -> str:
    try:
        return str(dset.dtype)
    except (TypeError, ValueError) as error:  # NumPy has no such type
        return f"({error})"


def find(
    file: h5py.File, group: str, name: str, key: str, external: str
) -> tuple[h5py.Dataset | h5py.Group, str | None]:
    """The dataset (or group) `name` below `group`, and the member if the path goes on into a compound type.

    key: the config key to blame. Nested paths may be used; a name that begins with / starts at the file's root.
    external: refuse or allow what leads to files elsewhere.
    """
    for what, text in (("group", group), ("dataset", name)):
        if not isinstance(text, str):
            raise ConfigError(f"{key}: expected the name of a {what}, got {text}")
    with named(f"{file.filename}: {name} ({key})"):
        return _find(file, group, name, key, external)


def stated_classes(item: h5py.Dataset | h5py.Group) -> Any:
    """The attribute `classes` of a dataset, its group or its file: names, (N,), or how many they are; None: neither."""
    owners = (item, item.parent, item.file)
    return next((owner.attrs["classes"] for owner in owners if "classes" in owner.attrs), None)


def class_names(item: h5py.Dataset | h5py.Group) -> list[str] | None:
    """Names in the attribute `classes`; None where it holds none, or none that can be read: reading the data must not
    fail by what only describes them."""
    try:
        classes = stated_classes(item)
    except (OSError, RuntimeError, LookupError, TypeError, ValueError):
        return None
    return [str(name) for name in classes] if np.ndim(classes) == 1 else None


def _find(file: h5py.File, group: str, name: str, key: str, external: str) -> tuple[Any, str | None]:
    try:
        check_way(file, group)
        check_link(link_of(file, group) if group.strip("/") else None, file, f"{file.filename}: {group}", external)
        top = file[group]
    except (KeyError, ValueError) as error:
        if "doesn't exist" not in str(error):
            raise unreadable(f"{file.filename}: the group {group} ({key})", error) from error
        raise ConfigError(
            f"{file.filename} has no group {group!r} ({key}); {_choices(file, group)}; "
            "data.splits.<split>.group says where a split lies, null that there is none"
        ) from None
    if not isinstance(top, h5py.Group):
        raise ConfigError(f"{file.filename}: {group!r} ({key}) is a dataset, not a group; use its parent group, or '/'")
    item: Any = top
    member: str | None = None
    parts = [part for part in name.split("/") if part]
    if name.startswith("/"):
        item = file
    check_way(item, name)
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
            where = f"{file.filename}: {item.name.rstrip('/')}/{part} ({key})"
            check_link(link_of(item, part), file, where, external)
            item = item[part]
        except (KeyError, RuntimeError) as error:
            if part not in item:
                raise ConfigError(
                    f"{file.filename}: {top.name} has no {name!r} ({key}); {_choices(top, name)}"
                ) from None
            raise _unreadable_link(item, part, file, key, error) from error
    if isinstance(item, h5py.Dataset):
        filters.load_plugins(item)
    check_external(item, file, external)
    if not isinstance(item, (h5py.Dataset, h5py.Group)):
        raise ConfigError(f"{file.filename}: {item.name} ({key}) is a named type, not a dataset; {_choices(top, name)}")
    return item, member


def _unreadable_link(group: h5py.Group, name: str, file: h5py.File, key: str, error: Exception) -> ConfigError:
    """Of a name that is there."""
    link, what = link_of(group, name), f"{file.filename}: {name!r} ({key})"
    if isinstance(link, h5py.ExternalLink):
        if not candidates(file, link.filename, EXT):
            return ConfigError(f"{what} links to {link.filename}, which is missing")
        what += f", a link to {link.path} of {link.filename},"
    elif isinstance(link, h5py.SoftLink):
        what += f", a link to {link.path},"
    elif link is None:
        what += ", a link of a user's own class, which h5py does not know,"
    return unreadable(what, error)


def check_type(dset: h5py.Dataset, key: str) -> None:
    try:
        _ = dset.dtype
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{dset.file.filename}: {dset.name} ({key}) has a type that NumPy lacks ({error}); write it as another"
        ) from error


def _choices(group: h5py.Group, wanted: str) -> str:
    there = listing(group)
    names = [line.split(" ")[0] for line in there]
    groups = [str(name) for name in group] if len(group) < 1000 else []
    near = difflib.get_close_matches(wanted.strip("/"), [*names, *groups], n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"It holds: {'; '.join(there) or 'no datasets'}"


_WAYS = 10**7  # closing a file takes HDF5 0.25 s for each million


class Sources:
    """Of a dataset all that it is made of: virtual datasets, theirs, files of raw storage. Raises what is wrong there.

    HDF5 reads fill values, without a word, where a virtual dataset's source is missing or an external file short, and
    crashes where a virtual dataset shows itself. files: those in which values lie beside its own. beyond: whether a
    virtual dataset shows more of another one than there is: HDF5 2.0 crashes on reading several rows of it at once."""

    def __init__(self, dset: h5py.Dataset) -> None:
        self.files: set[str] = set()
        self.beyond = False
        self._own = os.path.realpath(dset.file.filename)
        self._ways: dict[tuple[str, str], int] = {}  # virtual dataset -> what _visit says; 0 until that is known
        if self._visit(dset) > _WAYS:
            raise ConfigError(
                f"{dset.file.filename}: {dset.name} shows virtual datasets of virtual datasets, which lead to values "
                f"in more than {_WAYS} ways, and HDF5 takes each; name the datasets that hold the values"
            )

    def _visit(self, dset: h5py.Dataset) -> int:
        """-> in how many ways it leads to datasets that hold values."""
        where, path = f"{dset.file.filename}: {dset.name}", os.path.realpath(dset.file.filename)
        if path != self._own:
            self.files.add(path)
        if dset.external:
            self._check_raw(dset, where)
        if not dset.is_virtual:
            return 1
        this = (path, own_name(dset))
        if ways := self._ways.get(this):
            return ways
        if this in self._ways:
            raise ConfigError(f"{where} is a virtual dataset that shows itself; name the dataset that holds the values")
        self._ways[this], ways = 0, 1
        for name, of, shape in dict.fromkeys(
            (s.file_name, s.dset_name, s.src_space.shape) for s in dset.virtual_sources()
        ):
            found = [dset.file.filename] if name == "." else candidates(dset.file, name, VDS)
            if not found and "%" not in name:  # numbered blocks may be missing
                raise ConfigError(f"{where} is virtual and its source {name} is missing; put it beside the file")
            for path in found:
                with nullcontext(dset.file) if name == "." else open_h5(path) as file:
                    for each in source_names(file, of):
                        check_way(file, each)
                        if each not in file:
                            raise ConfigError(f"{where} is virtual and its source {name} has no {each}")
                        source = file[each]
                        if isinstance(source, h5py.Dataset):
                            if source.file == file and source.name.split("/")[1:] != [
                                k for k in each.split("/") if k not in ("", ".")
                            ]:
                                raise ConfigError(  # HDF5 2.0 crashes
                                    f"{where} is virtual and its source {name}: {each} is an external link to that "
                                    f"file itself; name {source.name}"
                                )
                            self.beyond |= source.shape != shape
                            ways += self._visit(source)
        self._ways[this] = ways
        return ways

    def _check_raw(self, dset: h5py.Dataset, where: str) -> None:
        end, needed = 0, dset.size * dset.id.get_type().get_size()  # numpy's bfloat16 is a float32
        for name, offset, size in dset.external:
            if os.path.exists(name):
                check_regular(name)
                self.files.add(name)
            there = os.path.getsize(name) - offset if os.path.exists(name) else needed  # missing: HDF5 itself says so
            end += min(there, size)
        if end < needed:
            raise ConfigError(
                f"{where} is stored in {dset.external[0][0]}, which has {end} of its {needed} bytes; copy it again"
            )
