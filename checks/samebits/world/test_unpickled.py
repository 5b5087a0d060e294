"""What ranks say to each other is data."""

from __future__ import annotations

import ast

from common import LIBRARIES, ROOT


def test_no_rank_unpickles_what_another_sent() -> None:
    """torch.distributed's *_object functions are called nowhere."""
    found = []
    for path in (path for folder in (ROOT / "src", *LIBRARIES) for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if "_object" in name and name.startswith(("gather", "all_gather", "broadcast", "scatter", "send", "recv")):
                found.append(f"{path.name}: {name}")
    assert not found
