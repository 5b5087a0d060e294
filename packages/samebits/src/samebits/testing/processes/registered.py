"""The project to test."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from samebits.project import Program

_registered: list[Program] = []
imports: list[str] = []


def register(program: Program, also: Sequence[str] = ()) -> None:
    """Make the helpers use this program. Call it in conftest.py, before any test is imported.

    also: names of modules that runs of the project import before their first step. Warm processes import them once.
    """
    _registered[:] = [program]
    imports[:] = also


def is_registered() -> bool:
    """Return True if a program is registered."""
    return bool(_registered)


def program() -> Program:
    """Return the registered program. Raise RuntimeError if there is none."""
    if not _registered:
        raise RuntimeError("no program is registered: call samebits.testing.register(PROGRAM) in conftest.py")
    return _registered[0]


def module(name: str) -> Any:
    """Return the module `name` of the project's package: module("loop") is lab.loop."""
    return importlib.import_module(f"{program().package}.{name}")
