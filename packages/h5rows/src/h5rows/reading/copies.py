"""Where files lie on this machine, whatever their names say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py

from h5rows.errors import ConfigError
from h5rows.reading.external import ALLOW_EXTERNAL, REFUSE_EXTERNAL
from h5rows.reading.opening import is_remote, names_of, open_h5


def local_copy(name: str) -> str:
    """A remote file's local copy, fetched if need be."""
    if not is_remote(name):
        return name
    from h5rows.reading.remote import fetched  # brings what talks to servers

    return fetched(name)


def files_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """As names_of, with the local copies of remote files."""
    return [local_copy(name) for name in names_of(path)]


def ranged(names: Sequence[str], cache_gb: float | None, external: str = REFUSE_EXTERNAL) -> list[Any]:
    """The RangedFiles of the remote ones, all asked for at once, where cache_gb says so; else none."""
    urls = [name for name in names if is_remote(name)]
    if cache_gb is None or not urls:
        return []
    if external == ALLOW_EXTERNAL:
        what = f"data.external=allow: a set that is read by blocks (data.cache_gb={cache_gb})"
        raise ConfigError(f"{what} follows nothing out of its files - leave one of the two out")
    from h5rows.reading.ranges import described

    return described(urls, cache_gb)


@contextmanager
def open_file(name: str, swmr: bool = False, cache_gb: float | None = None) -> Iterator[h5py.File]:
    """A remote file by its local copy; with cache_gb by its blocks, as they are needed."""
    if not (found := ranged([name], cache_gb)):
        with open_h5(local_copy(name), swmr) as file:
            yield file
        return
    from h5rows.reading.ranges import open_ranged

    with open_ranged(found[0]) as file:
        yield file


@contextmanager
def peek(url: str) -> Iterator[h5py.File]:
    """A remote file for a look at it, without fetching it whole if it is large. Links that lead out of it must not be
    followed: HDF5 would take it for the other."""
    from h5rows.reading.remote import SPAN, copy_of

    path, source = copy_of(url)
    if source is None or path.exists() or not source.ranged or source.size <= SPAN:
        with open_h5(local_copy(url)) as file:
            yield file
        return
    from h5rows.reading.ranges import NO_LIMIT, open_ranged, ranged_file

    with open_ranged(ranged_file(url, source.version, source.size, NO_LIMIT)) as file:  # others' blocks stay
        yield file
