"""What docstrings and comments of src and the libraries name is there: files by their name, functions of samebits by
`name(`."""

from __future__ import annotations

import ast
import builtins
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from common import LIBRARIES, ROOT

FILES = sorted(path for source in (ROOT / "src", *LIBRARIES) for path in source.rglob("*.py"))
SRC = ROOT / "packages/samebits/src"
PROSE: Any = runpy.run_path(str(ROOT / "tools/prose.py"))
prose = PROSE["docstrings"]  # of a file, with its comments
ROOMS = sorted({str(path.parent.relative_to(SRC)) for path in FILES if path.is_relative_to(SRC / "samebits")})
# of mathematics, of W&B's and Hydra's syntax, of user code in an example
NOT_OURS = {
    "AdamW", "DataLoader", "GPT", "P", "TestMine", "choice", "glob", "interval", "one_quick", "shuffle", "tag", "tan",
    "trigamma",
}  # fmt: skip


@cache
def words(path: Path) -> frozenset[str]:
    """Every name that a file's code has: defined, imported or used."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for name in ("name", "id", "attr", "arg", "asname"):
            found |= set(str(getattr(node, name, None) or "").split("."))
    return frozenset(found)


def files_named(text: str) -> list[str]:
    return re.findall(r"(?<![\w.*/-])((?:\w+/)*\w+\.py)\b", text)


def functions_named(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])([A-Za-z_]\w*)\(", text)


@pytest.mark.slow
def test_files_that_are_named_are_there() -> None:
    folders = ("src", "packages", "tests", "checks", "tools", "benchmarks")
    there = [f"/{path.relative_to(ROOT)}" for top in folders for path in (ROOT / top).rglob("*.py")]
    named = {(str(path), name) for path in FILES for text in prose(path) for name in files_named(text)}
    assert len(named) > 30
    assert [pair for pair in sorted(named) if not any(path.endswith(f"/{pair[1]}") for path in there)] == []


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_functions_that_are_named_are_in_their_room(room: str) -> None:
    here = [path for path in FILES if path.is_relative_to(SRC / room)]
    around = [path for path in FILES if path.is_relative_to(SRC.joinpath(*Path(room).parts[:2]))]
    known = NOT_OURS.union(dir(builtins), *map(words, around))
    named = {(path.name, name) for path in here for text in prose(path) for name in functions_named(text)}
    assert [pair for pair in sorted(named) if pair[1] not in known] == []


def test_what_is_gone_is_found() -> None:
    assert files_named("see gone.py, sub/gone.py and *.py") == ["gone.py", "sub/gone.py"]
    assert functions_named("take(heartbeats, 1), then x.take() and `beat(...)`") == ["take", "beat"]


def modules(folder: Path) -> set[str]:
    """Return the modules and packages in a package's folder by name."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def mapped(text: str) -> set[str]:
    """Return the names in a package's map, the last block of its docstring: `name, folder/    what it is`."""
    lines = [line.strip() for line in text.strip().split("\n\n")[-1].splitlines() if re.match(r"( {4})?\S.*  ", line)]
    return {name.strip().rstrip("/") for line in lines for name in line.split("  ")[0].split(",")}


PACKAGES = sorted(
    path for source in LIBRARIES for path in source.rglob("__init__.py") if "hydra_plugins" not in str(path)
)


@pytest.mark.parametrize("page", PACKAGES, ids=lambda page: str(page.parent.relative_to(ROOT / "packages")))
def test_the_map_of_a_package_names_its_modules(page: Path) -> None:
    assert mapped(ast.get_docstring(ast.parse(page.read_text())) or "") == modules(page.parent)


def test_each_public_name_of_lab_has_a_docstring_that_begins_with_a_verb() -> None:
    """As ruff requires of the libraries; a fork's own code may do without."""
    rules = ["--isolated", "--select", "D101,D102,D103,D401", "--output-format", "concise"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, "src"], cwd=ROOT, capture_output=True, text=True
    )
    inherited = "src/lab/datasets/h5.py:"  # sets __doc__ to that of h5rows
    assert [line for line in done.stdout.splitlines() if " D" in line and not line.startswith(inherited)] == []


def test_hard_words_are_found_and_plain_ones_are_not() -> None:
    hits = PROSE["hits"]
    hard = "What is left over is told to whoever lies beside it; else the run goes on. Of the ranks one stands alone."
    assert len(hits(hard)) >= 8
    assert hits("The run resumes from the last checkpoint, because rank 0 has saved it. Otherwise it raises.") == []
