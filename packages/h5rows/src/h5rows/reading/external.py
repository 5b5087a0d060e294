"""Check links, virtual datasets and external storage, through which an HDF5 file reads other files. No torch.

An untrusted file must not turn other files of this machine into samples, nor hang or crash the process that reads it.
With external="refuse" nothing outside the file is opened. With "allow" HDF5 reads everything it finds,
and returns fill values if other files contain less than declared; changes of the other files are not detected then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import h5py

from h5rows.errors import ConfigError, argument
from h5rows.reading.stored import file_name

ALLOW_EXTERNAL, REFUSE_EXTERNAL = "allow", "refuse"
RIGHT = (1, 14, 6)  # HDF5 1.14.2 reads some virtual datasets differently by row than by block
_MOST_LINKS = 16  # soft links on one path, as in HDF5


def check_external(dset: h5py.Dataset, external: str) -> None:
    """Raise ConfigError if values of the dataset are in another file (external="refuse"), or missing ("allow")."""
    check = _check_there if external == ALLOW_EXTERNAL else _check_inside
    where = f"{file_name(dset)}: {dset.name}"
    if dset.is_virtual and h5py.h5.get_libversion() < RIGHT:
        version = h5py.version.hdf5_version
        raise ConfigError(f"{where} is virtual, and HDF5 {version} may read wrong rows of it; install h5py>=3.14")
    check(dset, where)


def _check_inside(dset: h5py.Dataset, where: str) -> None:
    """Raise ConfigError if the dataset leads out of its file.

    Virtual datasets of virtual datasets are refused too: HDF5 crashes if they form a cycle, and reads each of them once
    per path to it.
    """
    if dset.external:
        raise _refused(f"{where} is stored in another file, {dset.external[0][0]}")
    sources = dset.virtual_sources() if dset.is_virtual else ()
    for other, name in dict.fromkeys((source.file_name, source.dset_name) for source in sources):
        if other != "." or "%" in name:  # a pattern of numbered sources
            raise _refused(f"{where} is virtual and shows {name} of another file, {other}")
        check_links(dset.file, name, REFUSE_EXTERNAL, f"{where} is virtual and shows {name}")
        shown = dset.file.get(name)
        if shown is None:
            raise ConfigError(f"{where} is virtual and its source {name} is missing; write the file again")
        if isinstance(shown, h5py.Dataset) and (shown.is_virtual or shown.external):
            raise _refused(f"{where} is virtual and shows {name}, which is virtual or stored in another file itself")


def _check_there(dset: h5py.Dataset, where: str) -> None:
    """Raise ConfigError if a source file is missing, because HDF5 would silently return fill values."""
    path, prefixes = os.path.abspath(dset.file.filename), os.environ.get("HDF5_VDS_PREFIX", "").split(":")
    places = [*filter(None, prefixes), os.path.dirname(path), os.path.dirname(os.path.realpath(path)), os.getcwd()]
    for name in external_files(dset) if dset.is_virtual else ():
        near = (os.path.join(place, last) for place in places for last in (name, os.path.basename(name)))
        if "%" not in name and not any(map(os.path.exists, near)):  # some of a numbered pattern may be missing
            raise ConfigError(f"{where} is virtual and its source {name} is missing; copy it to the file's folder")


def check_links(group: h5py.Group, path: str, external: str, where: str) -> None:
    """Raise ConfigError if an external link is on this path, before HDF5 opens the other file. where: for the
    message."""
    if external != ALLOW_EXTERNAL:
        _check_links(group, path, where, [])


def _check_links(group: h5py.Group, path: str, where: str, followed: list[str]) -> None:
    item: Any = group.file if path.startswith("/") else group
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for k, part in enumerate(parts, 1):
        if not isinstance(item, h5py.Group):
            return
        link = link_of(item, part)
        if isinstance(link, h5py.ExternalLink):
            raise _refused(f"{where}: {part} is a link to {link.path} of another file, {link.filename}")
        if isinstance(link, h5py.SoftLink):
            followed.append(part)
            if len(followed) > _MOST_LINKS:
                raise RuntimeError("too many links")  # HDF5's message
            _check_links(item, link.path, where, followed)
        with suppress(KeyError, OSError, RuntimeError):  # the error is raised when it is opened
            item = item.get(part) if k < len(parts) else None


def names_in(group: h5py.Group) -> list[str]:
    """Return the names of a group's members as text. h5py returns a name that is not UTF-8 as bytes."""
    return [name if isinstance(name, str) else _text(name) for name in group]


def link_of(group: h5py.Group, name: str) -> Any:
    """Return h5py's description of a link; None if there is none, or if it is of a user-defined class."""
    links, named = group.id.links, name.encode("utf-8", "surrogateescape")
    try:
        kind = links.get_info(named).type
    except (KeyError, OSError, RuntimeError):
        if links.exists(named):
            raise
        return None
    if kind == h5py.h5l.TYPE_HARD:
        return h5py.HardLink()
    if kind == h5py.h5l.TYPE_SOFT:
        return h5py.SoftLink(_text(links.get_val(named)))
    return h5py.ExternalLink(*map(_text, links.get_val(named))) if kind == h5py.h5l.TYPE_EXTERNAL else None


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def external_files(dset: h5py.Dataset) -> list[str]:
    """Return the names of the other files that contain values of a dataset."""
    names = [source.file_name for source in dset.virtual_sources()] if dset.is_virtual else []
    return list(dict.fromkeys([*(name for name in names if name != "."), *(part[0] for part in dset.external or ())]))


def items_below(group: h5py.Group) -> Iterator[tuple[str, Any]]:
    """Yield (path, group or dataset; None if it cannot be opened) of all objects in a group, each once, without links.

    Replaces h5py's `visit`, which crashes on a damaged object.
    """
    seen, left = {group.id}, [("", group)]
    while left:
        prefix, above = left.pop()
        try:
            names = names_in(above)
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
    return ConfigError(
        f"{what}: refused - if you trust it, {argument('external', 'allow')} reads it (repack: external='allow')"
    )
