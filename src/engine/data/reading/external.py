"""What an HDF5 file may lead to: external links, sources of virtual datasets, external raw storage. No torch.

A file from elsewhere must not make other files of this machine its samples. With external="refuse" links and sources
lead into the file's own folder and below, symbolic links resolved; raw storage in other files, which may be any file,
is not read. external="allow" (data.external) reads whatever the file names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, glob
from typing import Any

import h5py

from engine.data.reading.opening import check_regular, open_h5
from engine.errors import ConfigError

ALLOW_EXTERNAL, REFUSE_EXTERNAL = "allow", "refuse"
EXT, VDS = "HDF5_EXT_PREFIX", "HDF5_VDS_PREFIX"  # the user's own folders for what files lead to
_MOST_LINKS = 16  # that follow each other, as in HDF5
_Seen = set[tuple[str, str]]


def check_external(item: Any, file: h5py.File, external: str) -> None:
    """item: a group or dataset that was found in `file`. Raise a ConfigError where reading it leads elsewhere."""
    if external != ALLOW_EXTERNAL:
        where = f"{file.filename}: {item.name}"
        if not _within(item.file.filename, _folders(file, EXT)):
            raise _refused(f"{where} lies in {item.file.filename}, which is outside of the file's folder")
        if isinstance(item, h5py.Dataset):
            _check_dataset(item, where, set())


def check_link(link: Any, file: h5py.File, where: str, external: str) -> None:
    """The same for a link, before it is followed."""
    if external != ALLOW_EXTERNAL and isinstance(link, h5py.ExternalLink):
        for path in candidates(file, link.filename, EXT):
            if not _within(path, _folders(file, EXT)):
                raise _refused(f"{where} links to {link.filename}, which is outside of the file's folder")


def link_of(group: h5py.Group, name: str) -> Any:
    """What h5py says of a link; None: there is none, or it is of a user's own class, which h5py does not know."""
    try:
        return group.get(name, getlink=True)
    except TypeError:
        return None


def check_way(group: h5py.Group, path: str, depth: int = 0) -> None:
    """Raise a ConfigError where an external link on this path, soft links followed, leads to what is no file."""
    item: Any = group.file if path.startswith("/") else group
    for part in filter(None, path.split("/")):
        if not isinstance(item, h5py.Group):
            return
        link = link_of(item, part)
        if isinstance(link, h5py.ExternalLink):
            for there in candidates(item.file, link.filename, EXT):
                check_regular(there)
        elif isinstance(link, h5py.SoftLink) and depth < _MOST_LINKS:
            check_way(item, link.path, depth + 1)
        with suppress(KeyError, OSError, RuntimeError):  # said where it is opened
            item = item.get(part)


def external_files(dset: h5py.Dataset) -> list[str]:
    """The other files in which values of a dataset lie, as it names them."""
    names = [source.file_name for source in dset.virtual_sources()] if dset.is_virtual else []
    return list(dict.fromkeys([*(name for name in names if name != "."), *(part[0] for part in dset.external or ())]))


def items_below(group: h5py.Group) -> Iterator[tuple[str, Any]]:
    """(path, group or dataset; None: it cannot be opened) of what lies below a group, each object once, links left out.

    For h5py's visit, which crashes on an object that is damaged."""
    seen, left = {group.id}, [("", group)]
    while left:
        prefix, above = left.pop()
        try:
            names = list(above)
        except (KeyError, OSError, RuntimeError, ValueError):
            yield prefix.rstrip("/"), None
            continue
        for name in names:
            item = None
            if not isinstance(link_of(above, name), h5py.HardLink):
                continue
            with suppress(KeyError, OSError, RuntimeError, ValueError, TypeError):
                item = above[name]
            if item is not None and item.id in seen:
                continue
            if item is not None:
                seen.add(item.id)
            yield f"{prefix}{name}", item
            if isinstance(item, h5py.Group):
                left.append((f"{prefix}{name}/", item))


def own_name(dset: h5py.Dataset) -> str:
    """Its name in its own file. `dset.name` is the path by which it was reached: through links it may begin in another
    file, and name another dataset here."""
    file = dset.file
    try:
        if file[dset.name] == dset:
            return dset.name
    except (KeyError, ValueError, TypeError):
        pass
    return file[dset.ref].name


def _check_dataset(dset: h5py.Dataset, where: str, seen: _Seen) -> None:
    key = (dset.file.filename, own_name(dset))
    if key in seen:
        return
    seen.add(key)
    if dset.external:
        raise _refused(f"{where} is stored in {dset.external[0][0]}, which may be any file")
    roots = _folders(dset.file, VDS)
    for source in dset.virtual_sources() if dset.is_virtual else ():
        if source.file_name == ".":
            _check_sources(dset.file, source.dset_name, where, seen)
            continue
        for path in candidates(dset.file, source.file_name, VDS):
            if not _within(path, roots):
                raise _refused(f"{where} is virtual and its source {source.file_name} is outside of the file's folder")
            with open_h5(path) as file:
                _check_sources(file, source.dset_name, where, seen)


def _check_sources(file: h5py.File, name: str, where: str, seen: _Seen) -> None:
    for each in source_names(file, name):
        check_way(file, each)
        if each not in file:
            continue  # is said where the dataset is opened
        source = file[each]
        if not _within(source.file.filename, _folders(file, EXT)):
            raise _refused(f"{where} is virtual and its source lies in {source.file.filename}, another folder")
        if isinstance(source, h5py.Dataset):
            _check_dataset(source, where, seen)


def source_names(file: h5py.File, name: str) -> list[str]:
    """The datasets that a virtual dataset's source of this name may be, through links too: %b stands for a number."""
    if "%" not in name:
        return [name]
    paths = [""]
    for part in name.split("/"):
        if part:
            pattern = re.compile(_number(part, re.escape, _DIGITS))
            paths = [f"{path}/{key}" for path in paths for key in _keys(file, path) if pattern.fullmatch(key)]
    return paths


def _keys(file: h5py.File, path: str) -> list[str]:
    group = file.get(path or "/")
    return [key for key in group if isinstance(key, str)] if isinstance(group, h5py.Group) else []


def candidates(file: h5py.File, name: str, prefix: str) -> list[str]:
    """The files that HDF5 opens for this name: of each number that a virtual source's %b may be, the first that is
    there, in HDF5's order of places. An absolute name that is not there is looked for by its last part."""
    path, numbered = os.path.abspath(file.filename), prefix == VDS and "%" in name
    places = [*_prefixes(prefix), os.path.dirname(path), os.getcwd(), os.path.dirname(os.path.realpath(path))]
    tried = [(place, os.path.basename(name) if os.path.isabs(name) else name) for place in places]
    found: dict[tuple[str, ...], str] = {}
    for place, last in [*([("/", name)] if os.path.isabs(name) else []), *tried]:
        if not numbered:
            there = os.path.join(place, last)
            if os.path.exists(there):
                return [there]
            continue
        pattern = re.compile(_number(last, re.escape, _DIGITS))
        for there in glob(_number(last, escape, "*"), root_dir=place):
            if match := pattern.fullmatch(there):
                found.setdefault(match.groups(), os.path.join(place, there))
    return sorted(found.values())


_DIGITS = r"(\d+)"


def _number(text: str, quote: Any, number: str) -> str:
    """printf-style names of a virtual dataset's blocks: %b is a number, %% a percent sign."""
    kinds = {"%b": number, "%%": "%"}
    return "".join(kinds.get(part) or quote(part) for part in re.split("(%b|%%)", text))


def _prefixes(name: str) -> list[str]:
    """The user's own folders for what files lead to."""
    return [place for place in os.environ.get(name, "").split(":") if place]


def _folders(file: h5py.File, prefix: str = "") -> set[str]:
    """Of the file, as it was named and where it lies; and the user's own for what files lead to."""
    path = os.path.abspath(file.filename)
    places = [os.path.dirname(path), os.path.dirname(os.path.realpath(path)), *_prefixes(prefix)]
    return {os.path.realpath(place) for place in places}


def _within(path: str, folders: set[str]) -> bool:
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, folder]) == folder for folder in folders)


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"{what}: refused - if you trust this file, data.external=allow reads it (./run h5 repack: --external allow)"
    )
