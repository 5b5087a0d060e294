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

from parts import PACKAGES


@dataclass(frozen=True)
class Statement:
    """One at the top of a module. uses: names that it reads, takes as fixtures, or imports within. chains: attributes
    with what they are of, as in `samebits.world.World`."""

    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    chains: frozenset[str]
    imports: bool

    @property
    def is_test(self) -> bool:
        return any(name.lower().startswith("test") for name in self.binds) and not self.imports


def prune_tests(tree: Path, before: Path) -> None:
    """Until nothing changes: what uses something that was there before and has gone goes too. A file that is left
    without tests is deleted, and what only such files have imported. before: the project with all of its parts."""
    changed = True
    while changed:
        changed = False
        names_of.cache_clear()
        home.cache_clear()
        # fixtures of conftest.py, which a test names without importing them
        fixtures = (names_of(before, "conftest") or set()) - (names_of(tree, "conftest") or set())
        for path in sorted((tree / "tests").rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            whole = whole_modules(before, source)
            lost = {
                name
                for module, imported, name in imports(source)
                if gone(tree, before, module, imported) or (imported and gone(tree, before, f"{module}.{imported}", ""))
            }
            rest, doomed = list(statements(source)), []
            lost |= fixtures - {name for one in rest for name in one.binds}
            while found := [
                one
                for one in rest
                if not one.imports
                and (lost & one.uses or any(chain_is_gone(tree, before, whole, chain) for chain in one.chains))
            ]:
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
        for path in used_helpers(before) - used_helpers(tree):
            if (tree / path).exists():
                changed = True
                (tree / path).unlink()


def count_tests(tree: Path) -> dict[str, list[str]]:
    """{file: its test functions}"""
    found = {}
    for path in sorted((tree / "tests").rglob("*.py")):
        nodes = walked(path.read_text(encoding="utf-8"))
        functions = [one.name for one in nodes if isinstance(one, ast.FunctionDef)]
        found[path.relative_to(tree).as_posix()] = [name for name in functions if name.startswith("test_")]
    return found


def used_helpers(tree: Path) -> set[str]:
    """Files below tests/ that are no tests but that tests import, or start: a string has their name."""
    files = set((tree / "tests").rglob("*.py"))
    helpers = {path.stem: path for path in files if not path.name.startswith(("test_", "conftest."))}
    reached, ahead = set(), [path for path in files if path not in helpers.values()]
    while ahead:
        source = ahead.pop().read_text(encoding="utf-8")
        named = {module for module, _, _ in imports(source)} | set(re.findall(r"\b(\w+)\.py\b", source))
        named |= set(re.findall(r"^ *(?:from|import) (\w+)", source, re.MULTILINE))  # in the code of a child
        found = {path for name in named if (path := helpers.get(name)) is not None} - reached
        reached |= found
        ahead += found
    return {path.relative_to(tree).as_posix() for path in reached}


@cache  # each text is asked several times: for statements, for imports, for what it binds
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache  # a walk takes as long as the parser
def walked(source: str) -> list[ast.AST]:
    return [one for node in parsed(source).body for one in nodes_of(node)]


@cache
def nodes_of(node: ast.stmt) -> list[ast.AST]:
    return list(ast.walk(node))


@cache
def statements(source: str) -> tuple[Statement, ...]:
    found = []
    for node in parsed(source).body:
        inner = nodes_of(node)
        marks = [one for mark in getattr(node, "decorator_list", []) for one in ast.walk(mark)]
        uses = {one.id for one in inner if isinstance(one, ast.Name)}
        uses |= {one.arg for one in inner if isinstance(one, ast.arg)}
        inside = [alias for one in inner if isinstance(one, (ast.Import, ast.ImportFrom)) for alias in one.names]
        uses |= {alias.asname or alias.name for alias in inside}
        uses |= {one.value for one in marks if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        chains = {ast.unparse(one) for one in inner if isinstance(one, ast.Attribute) and is_chain(one)}
        chains |= {chain for one in inner if isinstance(one, ast.Call) for chain in patched(one)}
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        found.append(Statement(node, frozenset(bound_by(node)), frozenset(uses), frozenset(chains), is_import))
    return tuple(found)


def is_chain(node: ast.expr) -> bool:
    """a.b.c"""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and is_chain(node.value))


def patched(call: ast.Call) -> list[str]:
    """a.b.c of monkeypatch.setattr(a.b, "c", ...)"""
    match call.args:
        case [owner, ast.Constant(value=str(name)), *_] if is_chain(owner):
            return [f"{ast.unparse(owner)}.{name}"]
    return []


@cache
def imports(source: str) -> tuple[tuple[str, str, str], ...]:
    """(module, name in it or "", name here) of all imports, those in functions too."""
    found = []
    for node in walked(source):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "", alias.asname or alias.name) for alias in node.names]
    return tuple(found)


def whole_modules(tree: Path, source: str) -> dict[str, str]:
    """{name here: module of the project} of imports of a whole module, `from package import module` too."""
    found = {}
    for module, imported, name in imports(source):
        if imported and names_of(tree, f"{module}.{imported}") is not None:
            found[name] = f"{module}.{imported}"
        elif not imported and names_of(tree, module) is not None:
            found |= {name: module} if "." not in name else {name.partition(".")[0]: name.partition(".")[0]}
    return found


def chain_is_gone(tree: Path, before: Path, whole: dict[str, str], chain: str) -> bool:
    """Whether a.b.c.d names a module, or something in one, that has gone. whole: see whole_modules."""
    first, *names = chain.split(".")
    module = whole.get(first)
    for name in names if module else ():
        if gone(tree, before, module, name):
            return True
        module = f"{module}.{name}"
        if names_of(before, module) is None:  # a class, a function, or another library's module
            break
    return False


def gone(tree: Path, before: Path, module: str, name: str) -> bool:
    """Whether the module, or the name in it, was there before and is not now. A package that has gone whole is a
    library from now on: the wheel has all of it."""
    held = names_of(before, module)
    first = module.partition(".")[0]
    if held is None or (name and name not in held):
        return False
    if home(before, first) is not None and home(tree, first) is None:
        return False
    left = names_of(tree, module)
    return not left or bool(name and name not in left)


@cache
def home(tree: Path, package: str) -> Path | None:
    """The folder of a package of src/ or of a library in packages/; None if there is none."""
    places = [tree / "src", *sorted(tree.glob("packages/*/src"))]
    return next((place / package for place in places if (place / package).is_dir()), None)


@cache
def names_of(tree: Path, module: str) -> set[str] | None:
    """What can be imported from a module of the project; None if it has no such module."""
    first, *inner = module.split(".")
    place = (home(tree, first) or tree / "src" / first).joinpath(*inner)
    files = [place.with_suffix(".py"), place / "__init__.py"]
    held = {path.stem for path in place.iterdir() if path.name != "__pycache__"} if place.is_dir() else set()
    if not inner:
        files += [
            root / f"{module}.py"
            for root in (tree / "tests", *(tree / "tests").glob("*/"), *(tree / "tests").glob("*/*/"))
        ]
    files = [file for file in files if file.exists()]
    return held.union(*(bound(file.read_text(encoding="utf-8")) for file in files)) if files or held else None


@cache
def bound(source: str) -> set[str]:
    """Names that a module binds at its top, or lists on a page (samebits.pages)."""
    return {name for node in flat(parsed(source).body) for name in bound_by(node)} | {"__doc__"}


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
        if package in (*PACKAGES, "hydra_plugins") or not (tree / "src" / package).is_dir():
            left = package in PACKAGES or re.search(rf"\b_target_: {re.escape(target)}\b", conf)
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
