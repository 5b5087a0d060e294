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


def lazy(room: str, file: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of the page `room`, whose source is `file`."""
    module_of = names_of(Path(file))

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"{room} has no {name!r} for others; {file} lists what it has")
        return getattr(import_module(module_of[name]), name)

    return find


def names_of(page: Path) -> dict[str, str]:
    """{name: module} of the imports under `if TYPE_CHECKING:` in a page's source."""
    blocks = [node for node in ast.parse(page.read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
