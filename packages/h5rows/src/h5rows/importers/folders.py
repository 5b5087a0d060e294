"""List the files below a folder: all of them, each real folder once, and none outside of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from h5rows.account import Account
from h5rows.errors import ConfigError, check_not_pointer, printable

ALLOW = "allow"


def walk(root: Path, external: str, hidden: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, names of its folders, names of its files), sorted. hidden: include hidden ones.

    Links are followed. Raise ConfigError for a link that leads out of root, unless external is "allow", and for a link
    to a folder that was already visited or is above."""

    def stop(error: OSError) -> None:
        raise ConfigError(printable(f"{error.filename} cannot be read: {error.strerror}"))

    top = os.path.realpath(root)
    check_inside(root, top, external)
    met = {_identity(above): str(above) for above in Path(top).parents}
    for folder, names, files in os.walk(root, onerror=stop, followlinks=True):
        if (first := met.setdefault(_identity(folder), folder)) != folder:
            raise ConfigError(printable(f"{folder} is a link to {first}, which was already read; remove the link"))
        if not hidden:
            names[:] = [n for n in names if not n.startswith(".") and n != "_temporary"]  # of Spark's running jobs
            files = [f for f in files if not f.startswith(".")]
        names.sort()
        files.sort()
        for name in [*names, *files]:
            check_kind(path := os.path.join(folder, name))
            check_inside(path, top, external)
        yield folder, names, files


def files_of(root: Path, wanted: Callable[[str], bool], why: str, external: str, account: Account) -> list[Path]:
    """Return the files below with wanted names, sorted. The others are recorded as left out, with the reason."""
    found = []
    for folder, _, names in walk(root, external):
        for name in names:
            if wanted(name):
                found.append(Path(folder, name))
            else:
                account.leave("files", os.path.relpath(os.path.join(folder, name), root), why)
    return sorted(found)


def check_kind(path: str | Path) -> None:
    """Raise ConfigError unless the path is a folder or a file with data: reading a pipe or a device could hang."""
    try:
        found = os.stat(path)
    except OSError as error:  # a broken link, or a link to itself
        raise ConfigError(printable(f"{path} cannot be read: {error.strerror}")) from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ConfigError(printable(f"{path} is a pipe, a socket or a device; give regular files or folders"))
    check_not_pointer(path, found.st_size)


def check_inside(path: str | Path, top: str, external: str) -> None:
    """Raise ConfigError for a link out of the source: a foreign folder could link to any private file.

    top: the real path of the source."""
    if external == ALLOW or not os.path.islink(path) or lies_in(path, top):
        return
    raise ConfigError(
        printable(
            f"{path} is a link to {os.path.realpath(path)}, outside of {top}; external='allow' follows it if you trust "
            "the author of the link"
        )
    )


def lies_in(path: str | Path, top: str) -> bool:
    """Return True if the path, with all links resolved, is in the folder with the real path `top`."""
    real = os.path.realpath(path)
    return real == top or real.startswith(top.rstrip(os.sep) + os.sep)


def _identity(folder: str | Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino
