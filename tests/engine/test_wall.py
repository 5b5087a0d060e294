"""Two packages and a wall: the engine imports nothing of the project, and takes what it needs of it from engine.app."""

from __future__ import annotations

import ast
from pathlib import Path

from conftest import ROOT

ENGINE = ROOT / "src" / "engine"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found.add(str(node.module))
    return {name.partition(".")[0] for name in found}


def test_the_engine_imports_nothing_of_the_project() -> None:
    ours = {path.stem for path in (ROOT / "src").iterdir() if path.name != "engine"}  # lab, and the commands
    assert "lab" in ours and "train" in ours  # noqa: PT018
    files = sorted(ENGINE.rglob("*.py"))
    assert len(files) > 100
    assert {str(path): names for path in files if (names := imported(path) & ours)} == {}


def test_each_room_says_what_it_promises() -> None:
    for room in sorted(path for path in ENGINE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), room
