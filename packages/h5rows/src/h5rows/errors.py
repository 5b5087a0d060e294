"""The one error of this library, what to say of those that others raise, and of a library that is not there."""

import errno
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_KEY = re.compile(
    r"\bdata\.(?=(path|fields|splits?|split_by|missing|decode|external|cache_[gm]b|swmr|encoding|input_shape|num_outputs)\b)"
)


# a value that a message gives to an argument, as a config has it
_VALUE = re.compile(r"\b(data\.\w+=)(null|true|false|allow|drop|meant)\b")
_IN_PYTHON = {"null": "None", "true": "True", "false": "False"}


class ConfigError(ValueError):
    """A mistake of the user's: one line that names the key or file, the value and the remedy.

    Messages in the source name an argument as a config does, data.path. A program with a config sets `group` to what
    stands before the argument there, "data."; without one the argument is named alone, and values are Python's."""

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
    errno.EMFILE: "this process may open no more files; raise its limit (ulimit -n 4096)",
    errno.ENFILE: "this machine may open no more files",
    errno.ENOMEM: "no memory left; see what else runs here, and the limits (ulimit -v)",
    errno.EACCES: "you may not read it; see its permissions and those of its folders",
    errno.EPERM: "you may not read it; see its permissions and those of its folders",
    errno.EIO: "the disk or the network file system failed; see dmesg, and try again",
    errno.ESTALE: "the network file system has lost it; try again",
    errno.ETIMEDOUT: "the network file system does not answer; try again",
    errno.EINTR: "a signal came; try again",
}


def machine_fault(error: BaseException | None) -> str | None:
    """What the machine failed at, with a remedy, if that is why a file could not be read; None: it may be the file,
    also of a MemoryError: a damaged one may ask for any amount."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number is None and (told := re.search(r"errno = (\d+)", str(error))):  # HDF5's
            number = int(told[1])
        if number in _REMEDIES:
            return f"{os.strerror(number)}: {_REMEDIES[number]}"
        error = error.__cause__
    return None


def printable(name: object) -> str:
    """A name that may be no UTF-8, as text that a terminal and HDF5 take."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def clean(words: object) -> str:
    """For a terminal: nothing that steers it."""
    return "".join(c if c.isprintable() else "?" for c in printable(words))


def report(text: str) -> None:
    """Print lines that may quote a stranger's file: nothing in them steers the terminal."""
    print(*map(clean, text.split("\n")), sep="\n")


def on_one_line(said: object) -> str:
    """Whatever a server, a library or a file says."""
    return clean(" ".join(str(said).split()))


def first_line(error: BaseException) -> str:
    """Return the first line of a message without terminal colours; the error's type if there is no message."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def pip_install(packages: str) -> str:
    """The command that installs packages where this interpreter looks for them: the shell's pip may be another's."""
    return f"{sys.executable} -m pip install {packages}"


# library -> the extra of this distribution that has it
EXTRAS = {
    "pillow": "images", "lmdb": "lmdb", "tensorstore": "zarr", "pyarrow": "tables", "google-crc32c": "tfrecord",
    "tokenizers": "text", "fsspec": "remote", "hdf5plugin": "codecs", "zstandard": "codecs",
    "blosc": "codecs",
}  # fmt: skip


def missing(what: str, library: str) -> str:
    """Return the line for a library that is not installed. what: the file or option that needs it."""
    where = f"{library} (in the extra {EXTRAS[library]})"
    return f"{what} needs {where}, which is not installed - {pip_install(library)}"


def need(module: str, what: str, library: str) -> ModuleType:
    """Import a library's module; ConfigError where the library is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one that the library itself lacks
            raise
        raise ConfigError(missing(what, library)) from None
