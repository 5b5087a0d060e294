"""Where files lie on this machine, whatever their names say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import h5py

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


@contextmanager
def open_file(name: str, swmr: bool = False, cache_gb: float | None = None) -> Iterator[h5py.File]:
    """A remote file by its local copy; with cache_gb by its blocks, as they are needed."""
    if cache_gb is None or not is_remote(name):
        with open_h5(local_copy(name), swmr) as file:
            yield file
        return
    from h5rows.reading.ranges import described, open_ranged

    with open_ranged(described([name], cache_gb)[0]) as file:
        yield file
