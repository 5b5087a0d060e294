"""ConfigError, the only error of this library; messages for errors of other libraries and for missing packages."""

import errno
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_KEY = re.compile(
    r"\bdata\.(?=(path|fields|splits?|split_by|stratify_by|folds?|fold_repeat|missing|decode|external|cache_[gm]b|swmr|encoding|input_shape|num_outputs)\b)"
)


# a value of an argument in a message, in YAML
_VALUE = re.compile(r"\b(data\.\w+=)(null|true|false|allow|drop|meant)\b")
_IN_PYTHON = {"null": "None", "true": "True", "false": "False"}


class ConfigError(ValueError):
    """A user mistake: one line with the key or file, the value and the remedy.

    Messages in the source name arguments like a config does: data.path. A program with a config sets `group` to the
    prefix of these keys, "data.". If `group` is empty, messages contain only the argument's name, and values in Python
    syntax.
    """

    group = ""

    def __init__(self, text: object = "") -> None:
        said = str(text)
        if not ConfigError.group:
            said = _VALUE.sub(lambda found: found[1] + _IN_PYTHON.get(found[2], repr(found[2])), said)
        super().__init__(_KEY.sub(ConfigError.group, said))


def as_typed(value: Any) -> str:
    """Return a value as the caller of this library writes it: YAML in a config, otherwise Python."""
    if not ConfigError.group:
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {as_typed(one)}' for key, one in value.items())}}}"
    return "null" if value is None else str(value)


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


def machine_fault(error: BaseException | None) -> str | None:
    """Return the system's reason why a file could not be read, with a remedy; None if the file may be the reason.

    A MemoryError returns None, because a damaged file may request any amount of memory.
    """
    while error is not None:
        number = getattr(error, "errno", None)
        if number is None and (told := re.search(r"errno = (\d+)", str(error))):  # a message of HDF5
            number = int(told[1])
        if number in _REMEDIES:
            return f"{os.strerror(number)}: {_REMEDIES[number]}"
        error = error.__cause__
    return None


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
    "blosc": "codecs",
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
