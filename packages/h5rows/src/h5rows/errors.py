"""ConfigError, the only error of this library; messages for errors of other libraries and for missing packages."""

import contextlib
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class ConfigError(ValueError):
    """A user mistake: one line with the argument or file, the value and the remedy.

    Messages name an argument as the caller writes it: `path`. A program whose config has these arguments in a group,
    such as data.path, sets `group` to the prefix of its keys: "data.".
    """

    group = ""


def argument(name: str, *value: Any) -> str:
    """Return an argument as the caller of this library writes it.

    name: with the keys below it, such as splits.train.rows. value: at most one, to return an assignment:
    `splits={'val': None}` in Python, `data.splits.val=null` in a config.
    """
    if not value:
        return f"{ConfigError.group}{name}"
    top, _, below = name.partition(".")
    if below and not ConfigError.group:
        return f"{top}={as_typed({below: value[0]})}"
    return f"{ConfigError.group}{name}={as_typed(value[0])}"


def override(name: str, value: Any) -> str:
    """Return `argument(name, value)`, for a config as it is typed in a shell: `'data.missing={y: drop}'`."""
    return shlex.quote(argument(name, value)) if ConfigError.group else argument(name, value)


def as_typed(value: Any) -> str:
    """Return a value as the caller of this library writes it: YAML in a config, otherwise Python."""
    if not ConfigError.group:
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {as_typed(one)}' for key, one in value.items())}}}"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


_REMEDIES = {
    errno.EMFILE: "too many open files in this process; raise its limit (ulimit -n 4096)",
    errno.ENFILE: "too many open files on this machine",
    errno.ENOMEM: "out of memory; check other processes, and the limits (ulimit -v)",
    errno.EACCES: "you may not read it; check its permissions and those of its folders",
    errno.EPERM: "you may not read it; check its permissions and those of its folders",
    errno.EIO: "the disk or the network file system failed; check dmesg, and try again",
    errno.ESTALE: "the file handle is stale on the network file system; try again",
    errno.ETIMEDOUT: "the network file system does not answer; try again",
    errno.EINTR: "interrupted by a signal; try again",
}


def errno_of(error: BaseException) -> int | None:
    """Return the number of the system's error, which HDF5 has only in its message; None if there is none."""
    told = re.search(r"errno = (\d+)", str(error))
    return getattr(error, "errno", None) or (int(told[1]) if told else None)


def machine_fault(error: BaseException | None) -> str | None:
    """Return the system's reason why a file could not be read, with a remedy; None if the file may be the reason.

    A MemoryError returns None, because a damaged file may request any amount of memory.
    """
    while error is not None:
        if (number := errno_of(error)) in _REMEDIES:
            return f"{os.strerror(number)}: {_REMEDIES[number]}"
        error = error.__cause__
    return None


LFS_POINTER = b"version https://git-lfs."  # and a hash and a size; such a file has about 130 bytes
IS_POINTER = "is a Git LFS pointer, not the data; run `git lfs pull` there"


def check_not_pointer(path: str | os.PathLike[str], size: int) -> None:
    """Raise ConfigError for a Git LFS pointer, which a clone without `git lfs pull` has in place of a data file.

    size: of the file, in bytes.
    """
    if 100 < size < 200:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ConfigError(printable(f"{path} {IS_POINTER}"))


def printable(name: object) -> str:
    """Return a name that may not be UTF-8 as text that terminals and HDF5 accept."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def clean(words: object) -> str:
    """Replace control characters, so that the text is safe to print in a terminal."""
    return "".join(c if c.isprintable() else "?" for c in printable(words))


def report(text: str) -> None:
    """Print lines that may quote an untrusted file. Control characters are replaced."""
    print(*map(clean, text.split("\n")), sep="\n")


def on_one_line(said: object) -> str:
    """Return a message of a server, a library or a file as one printable line."""
    return clean(" ".join(str(said).split()))


def first_line(error: BaseException) -> str:
    """Return the first line of a message without terminal colors; the error's type if there is no message."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def pip_install(packages: str) -> str:
    """Return the command that installs packages for this interpreter; a plain `pip` may belong to another one."""
    return f"{sys.executable} -m pip install {packages}"


# library -> the extra of this distribution that installs it
EXTRAS = {
    "pillow": "images", "lmdb": "lmdb", "tensorstore": "zarr", "pyarrow": "tables", "google-crc32c": "tfrecord",
    "tokenizers": "text", "fsspec": "remote", "hdf5plugin": "codecs", "zstandard": "codecs",
    "blosc": "codecs", "torch": "torch",
}  # fmt: skip


def missing(what: str, library: str) -> str:
    """Return the message for a library that is not installed. what: the file or option that needs it."""
    where = f"{library} (in the extra {EXTRAS[library]})"
    return f"{what} needs {where}, which is not installed - {pip_install(library)}"


def need(module: str, what: str, library: str) -> ModuleType:
    """Import a module of a library. what: the file or option that needs it. Raise ConfigError if the library is not
    installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # a dependency of the library is missing
            raise
        raise ConfigError(missing(what, library)) from None
