"""What lies below a folder: all of it, each real folder once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ConfigError


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
        yield folder, names, sorted(f for f in files if not f.startswith("."))


def _identity(folder: str | Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino
