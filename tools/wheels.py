#!/usr/bin/env python3
"""Build the wheels of packages/ from the commit that is checked out.

    .ci/python tools/wheels.py FOLDER

Needs git and pip, nothing of this project's, so that tools/fork.py can use it before an environment is made.

Exit status: 0 built, 2 an error: uncommitted changes, no git checkout, a build that failed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

# Settings of git's users that change what the commands below answer. Others stay, such as safe.directory, without
# which git refuses a folder of another user.
PLAIN = (
    "-c", "core.attributesFile=/dev/null", "-c", "core.autocrlf=false", "-c", "core.eol=lf",
    "-c", "core.excludesFile=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
    "-c", "core.quotePath=false", "-c", "core.untrackedCache=false", "-c", "log.showSignature=false",
    "-c", "status.relativePaths=false", "-c", "tar.umask=0022",
)  # fmt: skip
DATE = str(1_000_000_000)  # of all files in a wheel: a shallow clone does not have the date of their last commit
SETUPTOOLS = 71  # builds wheels by itself; older ones need the package wheel


class Mistake(Exception):
    """A mistake of the user, as one line."""


def build(root: Path, into: Path) -> list[Path]:
    """Build a wheel of each folder of root/packages into the folder `into`; return the wheels, sorted by name.

    The files are those of HEAD, unpacked to a temporary folder, so that a wheel has nothing that an earlier build left
    behind. Two builds by the same setuptools are equal byte for byte if packages/ is the same. `into` is made if it is
    missing; it gets no wheel if one build fails. Raises Mistake if root is not a git checkout, if HEAD has no
    packages/, if files there are not committed, or if a build fails.
    """
    if changed := changes(root, "packages"):
        raise Mistake(f"{changed[0]}: is not committed - wheels are built from the commit: git commit, or git stash")
    if not (folders := git(root, "ls-tree", "-d", "--name-only", "HEAD", "packages/").decode().split()):
        raise Mistake(f"{root}: the commit has no packages/, of which wheels are built")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "source", Path(folder) / "built"
        with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", "HEAD", "packages"))) as archive:
            archive.extractall(source, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        # without isolation pip needs no network
        isolation = ["--no-build-isolation"] if _has_setuptools() else []
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, *isolation, "--wheel-dir", str(built), *(str(source / one) for one in folders)],
            env={**os.environ, "SOURCE_DATE_EPOCH": DATE},
            umask=0o022,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise Mistake(f"pip could not build the wheels of packages/:\n{done.stderr.strip()}")
        into.mkdir(parents=True, exist_ok=True)
        return sorted(_placed(wheel, into) for wheel in built.glob("*.whl"))


def changes(root: Path, *paths: str) -> list[str]:
    """Return the files below these paths that differ from HEAD, untracked ones included; all, if no path is given."""
    listed = git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", *paths)
    return [line[3:] for line in os.fsdecode(listed).split("\0") if line]


def git_environment() -> dict[str, str]:
    """Return the environment without variables such as GIT_DIR, with which git reads another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "CONFIG" in name}


def git(root: Path, *arguments: str) -> bytes:
    command = ["git", "--no-pager", *PLAIN, "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, env={**git_environment(), "LC_ALL": "C"}, capture_output=True, check=False)
    except FileNotFoundError:
        raise Mistake("git is not installed - wheels are built from a commit") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise Mistake(f"{root}: git {arguments[0]} failed: {said}")
    return done.stdout


def _has_setuptools() -> bool:
    """Return whether this Python can build without downloading setuptools."""
    try:
        return int(metadata.version("setuptools").split(".")[0]) >= SETUPTOOLS
    except metadata.PackageNotFoundError:
        return False


def _placed(wheel: Path, into: Path) -> Path:
    """Copy under another name, then rename, so that a killed process leaves no part of a wheel. Return the path."""
    partial = into / f"{wheel.name}.partial"
    partial.write_bytes(wheel.read_bytes())
    return partial.replace(into / wheel.name)


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    try:
        for wheel in build(Path(__file__).resolve().parents[1], Path(sys.argv[1])):
            print(wheel)
    except Mistake as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
