"""Names that a page offers, imported when one is first used: importing the page imports no library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_in(modules: Mapping[str, str]) -> dict[str, str]:
    """{module: its names} -> {name: module}, of modules of this package."""
    return {name: f"h5rows.{module}" for module, names in modules.items() for name in names.split()}


def importer(page: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a page."""

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{page} has no {name!r}; it has {', '.join(names)}")
        return getattr(import_module(names[name]), name)

    return attribute
