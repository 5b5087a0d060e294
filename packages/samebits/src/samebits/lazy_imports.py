"""Import the public names of packages lazily: the first use of a name imports its module (PEP 562), so that importing a
package is fast.

A package's `__init__.py` lists its public names once, as imports `from MODULE import NAME as NAME` under TYPE_CHECKING.
Type checkers and editors read them; they take a name that is imported without `as` as private (PEP 484). `lazy_getattr`
reads the same lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_getattr(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose source is `file`."""
    module_of = names_of(Path(file))

    def find(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(module_of[name]), name)
        raise AttributeError(f"module {package!r} has no public name {name!r}; {file} lists its public names")

    return find


def names_of(page: Path) -> dict[str, str]:
    """Return {name: module} of the imports under `if TYPE_CHECKING:` in a package's `__init__.py`. Raise ValueError if
    anything else is there."""
    found: dict[str, str] = {}
    for block in ast.parse(page.read_text(encoding="utf-8")).body:
        if not isinstance(block, ast.If) or ast.unparse(block.test) != "TYPE_CHECKING":
            continue
        for node in block.body:
            if not isinstance(node, ast.ImportFrom) or any(alias.asname != alias.name for alias in node.names):
                raise ValueError(f"{page}, line {node.lineno}: expected only `from MODULE import NAME as NAME`")
            found |= {alias.name: str(node.module) for alias in node.names}
    return found
