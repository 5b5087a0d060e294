#!/usr/bin/env python3
"""Check that the commit can be released, build its wheels, and print the commands that publish it. It pushes nothing.

    ./run python tools/release.py FOLDER      # FOLDER: where the wheels of packages/ go

Refuses changes that are not committed, versions that differ between the template and the libraries, a CHANGELOG without
a section of the version, and a tag that exists.

Exit status: 0 can be released, 2 an error; no wheels were built then.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path

from wheels import Mistake, build, changes, git

ROOT = Path(__file__).resolve().parents[1]
# where a version is written, and how
WRITTEN = {
    "pyproject.toml": r'^version = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "packages/*/src/*/__init__.py": r'^__version__ = "(.+)"$',
}


def release(root: Path, into: Path) -> list[str]:
    """Build the wheels of the commit into a folder and print their names; return the commands that publish the commit.
    Raises Mistake."""
    if changed := changes(root):
        raise Mistake(f"{changed[0]}: is not committed - git commit, or git stash")
    version = one_version(root)
    for page in sorted([root / "CHANGELOG.md", *(path / "CHANGELOG.md" for path in root.glob("packages/*/"))]):
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if not re.search(rf"^## {re.escape(version)}$", text, re.MULTILINE):
            raise Mistake(f"{page.relative_to(root)}: has no section '## {version}'")
    tag = f"v{version}"
    if git(root, "tag", "--list", tag):
        raise Mistake(f"{tag}: is a tag already - a release of other code needs another version")
    commit = git(root, "rev-parse", "HEAD").decode().strip()
    for wheel in build(root, into):
        print(wheel)
    return [shlex.join(["git", "tag", "-a", tag, "-m", f"Version {version}", commit]), f"git push origin {tag}"]


def one_version(root: Path) -> str:
    """Return the version that all files name. Raises Mistake."""
    found = {}
    for pattern, line in WRITTEN.items():
        for path in sorted(root.glob(pattern)):
            if written := re.search(line, path.read_text(encoding="utf-8"), re.MULTILINE):
                found[path.relative_to(root).as_posix()] = written[1]
    if len(set(found.values())) != 1:
        raise Mistake(f"the versions differ: {', '.join(f'{name} has {version}' for name, version in found.items())}")
    return next(iter(found.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels go")
    try:
        commands = release(ROOT, parser.parse_args().folder)
    except Mistake as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("this commit can be released; nothing was pushed. The commands:")
    for command in commands:
        print(f"  {command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
