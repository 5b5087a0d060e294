"""Where files lie on this machine, whatever their names say."""

from __future__ import annotations

import os
from collections.abc import Sequence

from h5rows.reading.opening import is_remote, names_of


def local_copy(name: str) -> str:
    """A remote file's local copy, fetched if need be."""
    if not is_remote(name):
        return name
    from h5rows.reading.remote import fetched  # brings what talks to servers

    return fetched(name)


def files_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """As names_of, with the local copies of remote files."""
    return [local_copy(name) for name in names_of(path)]
