"""Import optional libraries, which are installed by an extra of pyproject.toml, or report how to install them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from samebits.errors import ConfigError


def pip_install(package: str = "", *, extra: str = "") -> str:
    """Return the command that installs a package, or one of the project's extras, in the environment of this
    interpreter."""
    here = Path(sys.prefix)  # .venv of ./run, in the same folder
    run = "./run " if here.name == ".venv" and (here.parent / "run").is_file() else ""
    wanted = f"-e '.[{extra}]'" if extra else package  # the shell's pip may belong to another environment
    return f"{run}pip install {wanted}"


def missing(what: str, library: str, extra: str = "") -> str:
    """Return the line for a library that is not installed. what: the key or file that needs it. extra: the extra that
    installs it, or ""."""
    return f"{what} needs {library}, which is not installed - {pip_install(library, extra=extra)}"


def need(module: str, what: str, library: str, extra: str = "") -> ModuleType:
    """Import a module of a library. Raise ConfigError if the library is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # a missing dependency of the library
            raise
        raise ConfigError(missing(what, library, extra)) from None


def check_installed(library: str, what: str, extra: str = "") -> None:
    """Raise ConfigError if the library is not installed. Imports nothing."""
    if find_spec(library) is None:
        raise ConfigError(missing(what, library, extra))
