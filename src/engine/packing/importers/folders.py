"""What lies below a folder: all of it, each real folder once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ConfigError
from engine.packing.importers.base import printable


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of its folders, of its files), sorted; hidden ones are left out, links are followed.

    ConfigError: a folder cannot be read, or a link leads to one that was met before or lies above.
    """

    def stop(error: OSError) -> None:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}")

    met = {_identity(above): str(above) for above in root.resolve().parents}
    for folder, names, files in os.walk(root, onerror=stop, followlinks=True):
        if (first := met.setdefault(_identity(folder), folder)) != folder:
            raise ConfigError(f"{folder} is {first} again, by a link; remove the link")
        names[:] = sorted(n for n in names if not n.startswith("."))
        files = sorted(f for f in files if not f.startswith("."))
        for name in files:
            check_kind(Path(folder, name))
        yield folder, names, files


def check_kind(path: Path) -> None:
    """A pipe or a device would be waited for, or read for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:  # a link that leads to nothing, or to itself
        raise ConfigError(printable(f"{path} cannot be read: {error.strerror}")) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(
            printable(f"{path} is no regular file (a pipe, a socket or a device); give files, or folders")
        )


def _identity(folder: str | Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino
