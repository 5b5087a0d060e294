#!/usr/bin/env python3
"""Write constraints.txt, the versions that ./run installs: this environment's, of all that the extra `dev` needs.

    ./run python tools/constraints.py             # after all tests have passed with them
    ./run python tools/constraints.py --check     # writes nothing; ./run lint runs this

A version that does not support every Python of `requires-python` gets a marker; for the other Pythons pip chooses a
version that pyproject.toml allows. Exit status of --check: 1 if a requirement of pyproject.toml has no pin, or one that
it does not allow.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:  # mypy and pytest install it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FILE = "constraints.txt"
NOT_PINNED = ("samebits", "h5rows")  # installed from packages/, vendor/ or a git address
HEAD = """\
# The versions with which all tests passed, of all that the extra dev needs: what ./run installs, by pip or uv.
# Without this file it takes what pyproject.toml allows. Written by tools/constraints.py.
"""


def required(project: dict[str, Any], extras: Iterable[str] = ("dev",)) -> Iterator[Requirement]:
    """Yield the requirements of the project and these extras. The project's own extras and the libraries of packages/,
    such as lab[all,zarr], are replaced by their requirements."""
    ours = {canonicalize_name(one["name"]): one for one in (project, *libraries())}
    ahead: list[tuple[str, str | None]] = [(canonicalize_name(project["name"]), extra) for extra in (None, *extras)]
    done: set[tuple[str, str | None]] = set()
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for text in ours[name]["optional-dependencies"][extra] if extra else ours[name]["dependencies"]:
            requirement = Requirement(text)
            if (named := canonicalize_name(requirement.name)) in ours:
                ahead += [(named, one) for one in (None, *requirement.extras)]
            else:
                yield requirement


def libraries() -> list[dict[str, Any]]:
    """Return the table `project` of each pyproject.toml in packages/."""
    files = sorted(ROOT.glob("packages/*/pyproject.toml"))
    return [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]


def disagreements(project: dict[str, Any], constraints: str) -> list[str]:
    """Return a line for each requirement that has no pin or does not allow it, and for each line that is not a pin."""
    pins: dict[str, Version] = {}
    found = []
    for line in constraints.splitlines():
        if text := line.partition("#")[0].strip():
            pin = Requirement(text)
            if not (version := re.fullmatch(r"==([^,*]+)", str(pin.specifier))):
                found.append(f"{FILE}: {text}: is no version, NAME==VERSION")
            else:
                pins[canonicalize_name(pin.name)] = Version(version[1])
    for requirement in required(project):
        pinned = pins.get(canonicalize_name(requirement.name))
        if pinned is None and not requirement.url and requirement.name not in NOT_PINNED:
            found.append(f"{FILE}: has no {requirement.name}, which pyproject.toml asks for")
        elif pinned is not None and not requirement.specifier.contains(pinned, prereleases=True):
            found.append(f"{FILE}: has {requirement.name}=={pinned}, pyproject.toml asks for {requirement}")
    return found


def pinned(project: dict[str, Any]) -> str:
    """Return the text of constraints.txt for the distributions that are installed here."""
    minors = [f"3.{minor}" for minor in range(30) if SpecifierSet(project["requires-python"]).contains(f"3.{minor}")]
    pins, done = {}, set()
    ahead = [(one.name, extra) for one in required(project) for extra in ("", *one.extras)]
    while ahead:
        name, extra = ahead.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"error: {name} is not installed, which the extra dev needs - ./run pip install -e '.[dev]'")
        taken = [one for one in minors if SpecifierSet(found.metadata["Requires-Python"] or "").contains(f"{one}.0")]
        marks = [f'python_version >= "{taken[0]}"'] if taken[0] != minors[0] else []
        marks += [f'python_version <= "{taken[-1]}"'] if taken[-1] != minors[-1] else []
        version = found.version.partition("+")[0]  # without +cpu or +cu130: any build of the version
        if name not in NOT_PINNED:
            pins[canonicalize_name(name)] = f"{name}=={version}" + (f" ; {' and '.join(marks)}" if marks else "")
        for text in found.requires or []:
            inner = Requirement(text)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                ahead += [(inner.name, one) for one in ("", *inner.extras)]
    return HEAD + "".join(f"{pins[name]}\n" for name in sorted(pins))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the two disagree")
    check = parser.parse_args().check
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    file = ROOT / FILE
    if not check:
        file.write_text(pinned(project), encoding="utf-8")
        print(f"{FILE}: written")
    lines = disagreements(project, file.read_text(encoding="utf-8")) if file.exists() else []
    for line in lines:
        print(f"{line} - ./run pip install -e '.[dev]', then ./run python tools/constraints.py", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
