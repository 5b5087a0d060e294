"""Resolve names of files to files on this machine: local copies, or blocks, of remote files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py

from h5rows.errors import ConfigError, argument
from h5rows.reading.external import ALLOW_EXTERNAL, REFUSE_EXTERNAL
from h5rows.reading.opening import is_remote, names_of, open_h5


def local_copy(name: str) -> str:
    """Return the path of a file's local copy; a remote file is downloaded first if needed."""
    if not is_remote(name):
        return name
    from h5rows.reading.remote import fetched  # imports the network code only if needed

    return fetched(name)


def files_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """Return the files of `path` as names_of does, with remote files replaced by their local copies."""
    return [local_copy(name) for name in names_of(path)]


def ranged(names: Sequence[str], cache_gb: float | None, external: str = REFUSE_EXTERNAL) -> list[Any]:
    """Return the RangedFiles of the remote files, opened concurrently, if cache_gb is set; otherwise [].

    Raise ConfigError if cache_gb is too small or not a number, or if external="allow", because reading by blocks cannot
    follow links to other files.
    """
    if cache_gb is None:
        return []
    from h5rows.reading.ranges import check_cache_size, described  # imports the network code only if needed

    check_cache_size(cache_gb)
    urls = [name for name in names if is_remote(name)]
    if not urls:
        return []
    if external == ALLOW_EXTERNAL:
        blocks = f"remote files are read by blocks ({argument('cache_gb')}={cache_gb})"
        what = f"{argument('external', 'allow')}: not possible if {blocks}"
        raise ConfigError(f"{what} - remove one of the two")
    return described(urls, cache_gb)


@contextmanager
def open_file(name: str, swmr: bool = False, cache_gb: float | None = None) -> Iterator[h5py.File]:
    """Open a file. A remote file is opened through its local copy; with cache_gb through its blocks, loaded on
    demand."""
    if not (found := ranged([name], cache_gb)):
        with open_h5(local_copy(name), swmr) as file:
            yield file
        return
    from h5rows.reading.ranges import open_ranged

    with open_ranged(found[0]) as file:
        yield file


@contextmanager
def open_remote(url: str) -> Iterator[h5py.File]:
    """Open a remote file to inspect it; a large file is not downloaded as a whole.

    Do not follow links to other files in it: HDF5 would open this file in their place.
    """
    from h5rows.reading.remote import SPAN, copy_of

    path, source = copy_of(url)
    if source is None or path.exists() or not source.ranged or source.size <= SPAN:
        with open_h5(local_copy(url)) as file:
            yield file
        return
    from h5rows.reading.ranges import NO_LIMIT, open_ranged, ranged_file

    # no limit, so that no blocks of other files are deleted
    with open_ranged(ranged_file(url, source.version, source.size, NO_LIMIT)) as file:
        yield file
