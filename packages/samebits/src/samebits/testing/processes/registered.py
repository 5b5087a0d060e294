"""The project that the tests are of."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from samebits.project import Program

_registered: list[Program] = []
imports: list[str] = []


def register(program: Program, also: Sequence[str] = ()) -> None:
    """Make the helpers use this program. Call it in conftest.py, before any test is imported.

    also: names of modules of the project that its runs import before their first step: warm processes import them once.
    """
    _registered[:] = [program]
    imports[:] = also


def is_registered() -> bool:
    """Return whether a program was registered."""
    return bool(_registered)


def program() -> Program:
    """Return the registered program; RuntimeError if there is none."""
    if not _registered:
        raise RuntimeError("no program is registered: call samebits.testing.register(PROGRAM) in conftest.py")
    return _registered[0]


def module(name: str) -> Any:
    """Return the module `name` of the project's package: module("loop") is lab.loop."""
    return importlib.import_module(f"{program().package}.{name}")
