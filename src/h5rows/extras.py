"""Libraries for single formats and codecs: importing one, or the line that says how to get it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from h5rows.errors import ConfigError


def pip_install(packages: str) -> str:
    """The command that installs packages where this interpreter looks for them: the shell's pip may be another's."""
    return f"{sys.executable} -m pip install {packages}"


def missing(what: str, library: str) -> str:
    """The line for a library that is not there. what: the file or option that needs it."""
    return f"{what} needs {library}, which is not installed - {pip_install(library)}"


def need(module: str, what: str, library: str) -> ModuleType:
    """Import a library's module; ConfigError where the library is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one that the library itself lacks
            raise
        raise ConfigError(missing(what, library)) from None
