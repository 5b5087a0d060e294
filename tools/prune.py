"""Delete what uses a module or a name which is gone: tests and what they share, entries of conf/schema.json.

Unused imports are left to ruff.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Statement:
    """One at the top of a module. uses: names that it reads, takes as fixtures, or imports within."""

    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    imports: bool

    @property
    def is_test(self) -> bool:
        return any(name.lower().startswith("test") for name in self.binds) and not self.imports


def prune_tests(tree: Path) -> None:
    """Until nothing changes: what uses a deleted function goes too. A file that is left without tests is deleted."""
    changed = True
    while changed:
        changed = False
        names_of.cache_clear()
        for path in sorted((tree / "tests").rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            lost = {
                name
                for module, imported, name in imports(source)
                if (held := names_of(tree, module)) is not None and (imported not in held if imported else not held)
            }
            rest, doomed = list(statements(source)), []
            while found := [one for one in rest if not one.imports and lost & one.uses]:
                doomed += found
                rest = [one for one in rest if one not in found]
                lost |= {name for one in found for name in one.binds}
            if doomed:
                changed = True
                kept = [one for one in rest if one.is_test or not path.name.startswith("test_")]
                if any(one.binds and not one.imports for one in kept):
                    path.write_text(without(source, [one.node for one in doomed]), encoding="utf-8")
                else:
                    path.unlink()


@cache
def statements(source: str) -> tuple[Statement, ...]:
    found = []
    for node in ast.parse(source).body:
        inner = list(ast.walk(node))
        marks = [one for mark in getattr(node, "decorator_list", []) for one in ast.walk(mark)]
        uses = {one.id for one in inner if isinstance(one, ast.Name)}
        uses |= {one.arg for one in inner if isinstance(one, ast.arg)}
        uses |= {alias.asname or alias.name for one in inner if isinstance(one, ast.ImportFrom) for alias in one.names}
        uses |= {one.value for one in marks if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        found.append(Statement(node, frozenset(bound_by(node)), frozenset(uses), is_import))
    return tuple(found)


@cache
def imports(source: str) -> tuple[tuple[str, str, str], ...]:
    """(module, name in it or "", name here) of all imports, those in functions too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "", alias.asname or alias.name) for alias in node.names]
    return tuple(found)


@cache
def names_of(tree: Path, module: str) -> set[str] | None:
    """What can be imported from it; empty if there is no such module any more; None if it is of another library."""
    first, *inner = module.split(".")
    place = (tree / "src").joinpath(first, *inner)
    if first in ("engine", "hydra_plugins") or (tree / "src" / first).is_dir():
        files = [place.with_suffix(".py"), place / "__init__.py"]
        held = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    else:
        files, held = (
            [root / f"{module}.py" for root in (tree / "src", tree / "tests", *(tree / "tests").glob("*/*/"))],
            set(),
        )
        if not any(file.exists() for file in files):
            return None
    return held.union(*(bound(file.read_text(encoding="utf-8")) for file in files if file.exists()))


@cache
def bound(source: str) -> set[str]:
    """Names that a module binds at its top, or lists on a page (engine.pages)."""
    return {name for node in flat(ast.parse(source).body) for name in bound_by(node)} or {"__doc__"}


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for inner in ("body", "orelse", "handlers") if isinstance(node, (ast.If, ast.Try)) else ():
            yield from flat(getattr(node, inner, []))


def bound_by(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {name.id for one in targets if one is not None for name in ast.walk(one) if isinstance(name, ast.Name)}


def without(source: str, doomed: list[ast.stmt]) -> str:
    lines = source.splitlines(keepends=True)
    for node in sorted(doomed, key=lambda node: -node.lineno):
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        del lines[first - 1 : node.end_lineno]
    return "".join(lines)


def prune_schema(tree: Path) -> None:
    """Make conf/schema.json what ./run schema would write, which needs torch."""
    path = tree / "conf/schema.json"
    if not path.exists():  # a fork has deleted it
        return
    schema = json.loads(path.read_text(encoding="utf-8"))
    conf = "\n".join(one.read_text(encoding="utf-8") for one in (tree / "conf").rglob("*.yaml"))
    gone = set()
    for target in targets_of(schema):
        package, _, inner = target.rpartition(".")[0].partition(".")
        if package in ("engine", "hydra_plugins") or not (tree / "src" / package).is_dir():
            left = package == "engine" or re.search(rf"\b_target_: {re.escape(target)}\b", conf)
        else:
            left = (tree / "src" / package / f"{inner.replace('.', '/')}.py").exists()
        gone |= set() if left else {target}
    for name, one in schema["definitions"].items():
        kind, _, group = name.partition(".")
        folder = tree / "conf" / (group if kind in ("options", "choice") else name.partition("=")[0]).replace(".", "/")
        if "=" in name:
            gone |= set() if (folder / f"{name.partition('=')[2]}.yaml").exists() else {name}
        elif kind in ("options", "choice", "hydra"):
            gone |= set() if folder.is_dir() else {name}
        if kind == "options" and name not in gone:
            listed = one["anyOf"][0]
            listed["enum"] = [option for option in listed["enum"] if (folder / f"{option}.yaml").exists()]
    path.write_text(written(less(schema, gone)), encoding="utf-8")


def targets_of(schema: dict[str, Any]) -> list[str]:
    """The classes whose arguments it knows."""
    return [one["then"]["$ref"].rpartition("/")[2] for one in schema["definitions"]["built"]["allOf"]]


def less(node: Any, gone: Collection[str]) -> Any:
    """A part of a schema without these definitions and what refers to them; None if that is all of it."""
    if isinstance(node, str):
        return None if node in gone else node
    if isinstance(node, list):
        made = [(one, less(one, gone)) for one in node]
        kept = [left for one, left in made if one is None or left is not None]
        return kept if kept or not node else None
    if not isinstance(node, dict):
        return node
    if "$ref" in node and node["$ref"].split("/")[2] in gone:
        return None
    held = {key: one if one is None else less(one, gone) for key, one in node.items() if key not in gone}
    lost = {key for key, one in held.items() if one is None and node[key] is not None}
    if lost & {"then", "else", "items"} or (lost and len(lost) == len(held)):
        return None
    return {key: one for key, one in held.items() if key not in lost}


def written(schema: dict[str, Any]) -> str:
    """A line for each definition."""
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in schema["definitions"].items()]
    head = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in schema.items() if key != "definitions"]
    return "{" + ",\n".join([*head, '"definitions": {\n' + ",\n".join(lines)]) + "\n}}\n"
