"""What ranks say to each other is data."""

from __future__ import annotations

import ast

import pytest
from common import LIBRARIES, ROOT

OF_WORLD = ("gather_object", "broadcast_object")  # these send JSON; torch.distributed's of the same name pickle
CALLS = ("gather", "all_gather", "broadcast", "scatter", "send", "recv")


def pickling(source: str) -> list[str]:
    """Names of torch.distributed's *_object functions that the source uses."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [node.attr] if isinstance(node, ast.Attribute) else [node.id] if isinstance(node, ast.Name) else []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        owner = ast.unparse(node.value).rpartition(".")[2] if isinstance(node, ast.Attribute) else ""
        for name in names:
            if "_object" in name and name.startswith(CALLS) and not (name in OF_WORLD and owner in ("self", "world")):
                found.append(name)
    return found


def test_no_rank_unpickles_what_another_sent() -> None:
    """torch.distributed's *_object functions are called nowhere."""
    found = []
    for path in (path for folder in (ROOT / "src", *LIBRARIES) for path in folder.rglob("*.py")):
        found += [f"{path.name}: {name}" for name in pickling(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("dist.gather_object(1, None)", "gather_object"),
        ("torch.distributed.broadcast_object_list([1])", "broadcast_object_list"),
        ("from torch.distributed import all_gather_object", "all_gather_object"),
        ("run.world.gather_object(1)", ""),
    ],
)
def test_what_unpickles_is_found(source: str, name: str) -> None:
    assert pickling(source) == ([name] if name else [])
