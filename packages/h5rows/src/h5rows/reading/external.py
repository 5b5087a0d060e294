"""What an HDF5 file may lead to: external links, sources of virtual datasets, external raw storage. No torch.

A file from elsewhere must not make other files of this machine its samples, nor hang or crash who reads it. With
external="refuse" nothing is opened that leads out of the file. With "allow" (data.external) HDF5 reads what it finds,
and fill values where the other files hold less than this one says; changes of the other files are not seen then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import h5py

from h5rows.errors import ConfigError

ALLOW_EXTERNAL, REFUSE_EXTERNAL = "allow", "refuse"
RIGHT = (1, 14, 6)  # HDF5 1.14.2 reads some virtual datasets otherwise by row than by block
_MOST_LINKS = 16  # soft links on the way to one object, as in HDF5


def check_external(dset: h5py.Dataset, external: str) -> None:
    """Raise a ConfigError where values of the dataset lie in another file, or are not there."""
    check = _check_there if external == ALLOW_EXTERNAL else _check_inside
    where = f"{dset.file.filename}: {dset.name}"
    if dset.is_virtual and h5py.h5.get_libversion() < RIGHT:
        version = h5py.version.hdf5_version
        raise ConfigError(f"{where} is virtual, of which HDF5 {version} may read wrong rows; install h5py>=3.14")
    check(dset, where)


def _check_inside(dset: h5py.Dataset, where: str) -> None:
    """Virtual datasets of virtual ones are refused too: HDF5 crashes where they lead in a circle, and reads each as
    often as there are ways to it."""
    if dset.external:
        raise _refused(f"{where} is stored in another file, {dset.external[0][0]}")
    sources = dset.virtual_sources() if dset.is_virtual else ()
    for file_name, name in dict.fromkeys((source.file_name, source.dset_name) for source in sources):
        if file_name != "." or "%" in name:  # numbered
            raise _refused(f"{where} is virtual and shows {name} of another file, {file_name}")
        check_links(dset.file, name, REFUSE_EXTERNAL, f"{where} is virtual and shows {name}")
        shown = dset.file.get(name)
        if shown is None:
            raise ConfigError(f"{where} is virtual and its source {name} is missing; write it again")
        if isinstance(shown, h5py.Dataset) and (shown.is_virtual or shown.external):
            raise _refused(f"{where} is virtual and shows {name}, which is virtual or stored in another file itself")


def _check_there(dset: h5py.Dataset, where: str) -> None:
    """HDF5 would read fill values, without a word."""
    path, prefixes = os.path.abspath(dset.file.filename), os.environ.get("HDF5_VDS_PREFIX", "").split(":")
    places = [*filter(None, prefixes), os.path.dirname(path), os.path.dirname(os.path.realpath(path)), os.getcwd()]
    for name in external_files(dset) if dset.is_virtual else ():
        near = (os.path.join(place, last) for place in places for last in (name, os.path.basename(name)))
        if "%" not in name and not any(map(os.path.exists, near)):  # of numbered ones some may be missing
            raise ConfigError(f"{where} is virtual and its source {name} is missing; put it beside the file")


def check_links(group: h5py.Group, path: str, external: str, where: str) -> None:
    """Raise a ConfigError where an external link is on this path, before HDF5 opens what it names."""
    if external != ALLOW_EXTERNAL:
        _check_links(group, path, where, [])


def _check_links(group: h5py.Group, path: str, where: str, followed: list[str]) -> None:
    item: Any = group.file if path.startswith("/") else group
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if not isinstance(item, h5py.Group):
            return
        link = link_of(item, part)
        if isinstance(link, h5py.ExternalLink):
            raise _refused(f"{where}: {part} is a link to {link.path} of another file, {link.filename}")
        if isinstance(link, h5py.SoftLink):
            followed.append(part)
            if len(followed) > _MOST_LINKS:
                raise RuntimeError("too many links")  # as HDF5 says
            _check_links(item, link.path, where, followed)
        with suppress(KeyError, OSError, RuntimeError):  # said where it is opened
            item = item.get(part)


def link_of(group: h5py.Group, name: str) -> Any:
    """What h5py says of a link; None: there is none, or it is of a user's own class, which h5py does not know."""
    try:
        return group.get(name, getlink=True)
    except TypeError:
        return None


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


def _refused(what: str) -> ConfigError:
    return ConfigError(f"{what}: refused - if you trust it, data.external=allow reads it (repack: external='allow')")
