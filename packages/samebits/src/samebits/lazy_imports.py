"""Pages of rooms: a name of a page imports its module when it is first used (PEP 562): importing a room is free.

A page is a room's `__init__.py`. It lists its names once, as imports under TYPE_CHECKING, which type checkers and
editors follow; `lazy` reads the same lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_getattr(room: str, file: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of the page `room`, whose source is `file`."""
    module_of = names_of(Path(file))

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"{room} has no {name!r} for others; {file} lists what it has")
        return getattr(import_module(module_of[name]), name)

    return find


def names_of(page: Path) -> dict[str, str]:
    """{name: module} of the imports under `if TYPE_CHECKING:` in a page's source. ValueError: it has others there."""
    found: dict[str, str] = {}
    for block in ast.parse(page.read_text(encoding="utf-8")).body:
        if not isinstance(block, ast.If) or ast.unparse(block.test) != "TYPE_CHECKING":
            continue
        for node in block.body:
            if not isinstance(node, ast.ImportFrom) or any(alias.asname for alias in node.names):
                raise ValueError(f"{page}, line {node.lineno}: a page has plain `from MODULE import NAME` alone")
            found |= {alias.name: str(node.module) for alias in node.names}
    return found
