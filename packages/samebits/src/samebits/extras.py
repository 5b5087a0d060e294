"""Libraries that the base does without, each brought by an extra of pyproject.toml: importing one, or the line that
says how to get it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from samebits.errors import ConfigError


def pip_install(package: str = "", *, extra: str = "") -> str:
    """The command that installs a package, or one of the project's extras, where this interpreter looks for them."""
    here = Path(sys.prefix)  # what ./run has made, beside it
    run = "./run " if here.name == ".venv" and (here.parent / "run").is_file() else ""
    wanted = f"-e '.[{extra}]'" if extra else package  # the shell's pip is another environment's
    return f"{run}pip install {wanted}"


def missing(what: str, library: str, extra: str = "") -> str:
    """The line for a library that is not there. what: the key or file that needs it; extra: brings it, "" if none."""
    return f"{what} needs {library}, which is not installed - {pip_install(library, extra=extra)}"


def need(module: str, what: str, library: str, extra: str = "") -> ModuleType:
    """Import a library's module; ConfigError where the library is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one that the library itself lacks
            raise
        raise ConfigError(missing(what, library, extra)) from None


def check_installed(library: str, what: str, extra: str = "") -> None:
    """ConfigError where the library is not there; imports nothing."""
    if find_spec(library) is None:
        raise ConfigError(missing(what, library, extra))
