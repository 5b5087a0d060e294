"""What lies below a folder: all of it, each real folder once, and nothing that lies elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from h5rows.account import Account
from h5rows.errors import ConfigError, printable

ALLOW = "allow"


def walk(root: Path, external: str, hidden: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of its folders, of its files), sorted; links are followed, and to what lies outside of root only
    if external is `allow`, never to a folder that was met before or lies above. Hidden ones only if `hidden`."""

    def stop(error: OSError) -> None:
        raise ConfigError(printable(f"{error.filename} cannot be read: {error.strerror}"))

    top = os.path.realpath(root)
    check_inside(root, top, external)
    met = {_identity(above): str(above) for above in Path(top).parents}
    for folder, names, files in os.walk(root, onerror=stop, followlinks=True):
        if (first := met.setdefault(_identity(folder), folder)) != folder:
            raise ConfigError(printable(f"{folder} is {first} again, by a link; remove the link"))
        if not hidden:
            names[:] = [n for n in names if not n.startswith(".")]
            files = [f for f in files if not f.startswith(".")]
        names.sort()
        files.sort()
        for name in [*names, *files]:
            check_kind(path := os.path.join(folder, name))
            check_inside(path, top, external)
        yield folder, names, files


def files_of(root: Path, wanted: Callable[[str], bool], why: str, external: str, account: Account) -> list[Path]:
    """The files below whose names are wanted, sorted; of the others the account is told why they are left out."""
    found = []
    for folder, _, names in walk(root, external):
        for name in names:
            if wanted(name):
                found.append(Path(folder, name))
            else:
                account.leave("files", os.path.relpath(os.path.join(folder, name), root), why)
    return sorted(found)


def check_kind(path: str | Path) -> None:
    """A pipe or a device would be waited for, or read for ever."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:  # a link that leads to nothing, or to itself
        raise ConfigError(printable(f"{path} cannot be read: {error.strerror}")) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(printable(f"{path} is no regular file (a pipe, a socket or a device); give files or folders"))


def check_inside(path: str | Path, top: str, external: str) -> None:
    """top: the real path of the source. A folder from elsewhere could hold a link to any file of whoever packs it."""
    if external == ALLOW or not os.path.islink(path) or lies_in(path, top):
        return
    raise ConfigError(
        printable(
            f"{path} is a link to {os.path.realpath(path)}, outside of {top}; external='allow' reads what lies "
            "elsewhere, if you trust who made the link"
        )
    )


def lies_in(path: str | Path, top: str) -> bool:
    """Whether what a path leads to, by all its links, lies in the folder of this real path."""
    real = os.path.realpath(path)
    return real == top or real.startswith(top.rstrip(os.sep) + os.sep)


def _identity(folder: str | Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino
