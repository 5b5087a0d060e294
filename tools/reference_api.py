"""docs/api*.md: the public names of lab and of the libraries, which mkdocstrings describes from their docstrings.

A package's public names are the imports in its `__init__.py`, under TYPE_CHECKING: the packages import them when they
are first used, so no other list of them exists.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from reference_text import DOCS, GENERATED, cell, sentence

ROOT = Path(__file__).resolve().parents[1]
# Classes of lab that a task or a callback meets. Of two names the first that exists, as lab may be of another version.
CLASSES = (
    ("Task",),
    ("TaskRun",),
    ("OptimizerStep",),
    ("Callback",),
    ("TrainState",),
    ("RunContext",),
)
# In the site's search, guides come before these pages, which contain every word.
FRONT = ["---", "search:", "  boost: 0.2", "---", ""]
LIBRARIES = {"samebits": "api_samebits.md", "h5rows": "api_h5rows.md"}


def package() -> Path:
    """Return the folder of the project's own package: lab, or a fork's."""
    return next(path.parent for path in (ROOT / "src").glob("*/project.py"))


def names_of(file: Path) -> dict[str, str]:
    """Return {public name: the dotted path of what it names} of the imports under TYPE_CHECKING in a file."""
    found: dict[str, str] = {}
    for block in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def classes(folder: Path) -> dict[str, str]:
    """Return {name: dotted path} of all classes that the modules of a package define; the first of equal names."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        module = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, f"{module}.{node.name}")
    return found


def about(file: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return sentence(re.split(r"\n\n", text)[0])


def is_documented(path: str) -> bool:
    """Return whether a dotted path names a class or a function. Constants have no docstring to show."""
    module, _, name = path.rpartition(".")
    file = next((one for one in places(module) if one.is_file()), None)
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file else ():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                if (one.asname or one.name) == name:
                    return is_documented(f"{node.module}.{one.name}")
    return False


def places(module: str) -> Iterator[Path]:
    """Yield the paths at which a module of this project may be."""
    for source in (ROOT / "src", *sorted(ROOT.glob("packages/*/src"))):
        path = source.joinpath(*module.split("."))
        yield from (path.with_suffix(".py"), path / "__init__.py")


def described(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from (f"::: {path}", "")


def lab_page() -> str:
    own = package()
    found = classes(own)
    chosen = [next((found[name] for name in names if name in found), None) for names in CLASSES]
    helpers = names_of(own / "__init__.py")
    others = [f"[{name}]({file})" for name, file in LIBRARIES.items() if (DOCS / file).is_file()]
    lines = [
        *FRONT, "# Python API", "", GENERATED, "",
        f"The public names of `{own.name}`: functions for notebooks and scripts, and the classes that your tasks and",
        f"callbacks use. The libraries have their own pages: {', '.join(others)}.",
        "", "## Notebooks and scripts", "",
        f"`from {own.name} import {', '.join(helpers)}`", "",
        *described(f"{own.name}.{name}" for name, path in helpers.items() if is_documented(path)),
        "## Tasks, callbacks and the training loop", "",
        *described(path for path in chosen if path is not None),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def public_packages(library: str) -> dict[str, Path]:
    """Return {dotted name: its `__init__.py`} of the packages of a library that have public names; {} without it."""
    folder = ROOT / "packages" / library / "src" / library
    files = sorted(folder.rglob("__init__.py"), key=lambda path: path.parts[:-1])
    return {".".join(one.parent.relative_to(folder.parent).parts): one for one in files if names_of(one)}


def page_of(package: str) -> str:
    """Return the page of a package: api_samebits_sweeps_report.md."""
    return f"api_{package.replace('.', '_')}.md"


def library_page(library: str) -> str:
    """Return the page of a library: its own public names, then a table of its packages."""
    found = public_packages(library)
    root = ROOT / "packages" / library / "src" / library / "__init__.py"
    lines = [*FRONT, f"# Python API: {library}", "", GENERATED, "", about(root), ""]
    if others := {package: file for package, file in found.items() if package != library}:
        lines += [
            "Each package that has public names has a page, which begins with their import. Other names are internal.",
            "",
            "| Package | Content |", "|---|---|",
            *(f"| [`{package}`]({page_of(package)}) | {cell(about(file))} |" for package, file in others.items()),
            "",
        ]  # fmt: skip
    if library in found:
        lines += list(names_section(library, found[library]))
    return "\n".join(lines).rstrip() + "\n"


def package_page(package: str, file: Path) -> str:
    """Return the page of one package of a library."""
    library = package.partition(".")[0]
    lines = [
        *FRONT, f"# {package}", "", GENERATED, "", about(file), "",
        f"All packages: [Python API of {library}](api_{library}.md).", "",
        *names_section(package, file),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def names_section(package: str, file: Path) -> Iterator[str]:
    """Yield how to import the public names of a package, and the description of each that has a docstring."""
    names = names_of(file)
    yield from ("```python", f"from {package} import (", *(f"    {name}," for name in names), ")", "```", "")
    yield from described(f"{package}.{name}" for name, path in names.items() if is_documented(path))


def pages() -> dict[str, str]:
    """Return {file in docs/: its text}."""
    found = {"api.md": lab_page()}
    for library, file in LIBRARIES.items():
        packages = public_packages(library)
        if packages:
            found[file] = library_page(library)
        found |= {page_of(name): package_page(name, own) for name, own in packages.items() if name != library}
    return found
