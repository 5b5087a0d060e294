"""Lazy public names of packages: a name imports its module when it is first used, so importing a package is cheap."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from h5rows.errors import missing


@cache
def names_of(file: str) -> dict[str, str]:
    """Return {name: module} of the imports under `if TYPE_CHECKING:` in a package's `__init__.py`.

    They are written `from MODULE import NAME as NAME`, because type checkers take other imports as private (PEP 484).
    """
    blocks = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}


def lazy_getattr(page: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose source is `file`."""

    def attribute(name: str) -> Any:
        if name not in (names := names_of(file)):
            raise AttributeError(f"{page} has no {name!r}; it has {', '.join(names)}")
        try:
            return getattr(import_module(names[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(missing(f"{page}.{name}", "torch"), name="torch") from None

    return attribute
