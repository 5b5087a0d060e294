"""Wheels of packages/, and a release of them: from the commit, whatever lies in the checkout beside it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from conftest import import_tool

GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
PROJECT = '[build-system]\nrequires = ["setuptools>=68"]\n[project]\nname = "{0}"\nversion = "1.2"\n'
FOUND = '[tool.setuptools.packages.find]\nwhere = ["src"]\n'


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    return import_tool("wheels")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two small packages, committed."""
    root = tmp_path / "project"
    for name in ("one", "two"):
        folder = root / "packages" / name
        (folder / "src" / name).mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PROJECT.format(name) + FOUND)
        (folder / "src" / name / "__init__.py").write_text("")
        (folder / "src" / name / "module.py").write_text("x = 1\n")
    (root / ".gitignore").write_text("build/\n*.egg-info/\n")
    git(root, "init", "-q")
    commit(root)
    return root


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as held:
        return {name for name in held.namelist() if ".dist-info/" not in name}


def test_wheels_are_of_the_commit(wheels: ModuleType, project: Path, tmp_path: Path) -> None:
    """Without what a build in the checkout left behind; and byte for byte the same, by whomever they are built."""
    stale = project / "packages/one/build/lib/one/stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    built = wheels.build(project, tmp_path / "a")
    assert [wheel.name.split("-")[:2] for wheel in built] == [["one", "1.2"], ["two", "1.2"]]
    assert [modules(wheel) for wheel in built] == [{f"{n}/__init__.py", f"{n}/module.py"} for n in ("one", "two")]
    git(project, "config", "core.autocrlf", "true")
    git(project, "config", "tar.umask", "0077")
    again = wheels.build(project, tmp_path / "b")
    assert [wheel.read_bytes() for wheel in again] == [wheel.read_bytes() for wheel in built]
    git(project, "mv", "packages/one/src/one/module.py", "packages/one/src/one/renamed.py")
    git(project, "commit", "-q", "-m", "renamed")
    assert modules(wheels.build(project, tmp_path / "a")[0]) == {"one/__init__.py", "one/renamed.py"}


def test_what_is_not_committed_is_refused(wheels: ModuleType, project: Path, tmp_path: Path) -> None:
    """Whatever git's settings hide."""
    git(project, "config", "status.showUntrackedFiles", "no")
    (tmp_path / "excluded").write_text("new.py\n")
    git(project, "config", "core.excludesFile", str(tmp_path / "excluded"))
    (project / "notes.txt").write_text("outside of packages/")
    assert len(wheels.build(project, tmp_path / "wheels")) == 2
    new = project / "packages/two/src/two/new.py"
    new.write_text("")
    with pytest.raises(wheels.Mistake, match=r"^packages/two/src/two/new\.py: is not committed"):
        wheels.build(project, tmp_path / "other")
    new.unlink()
    (project / "packages/one/src/one/module.py").write_text("x = 2\n")
    with pytest.raises(wheels.Mistake, match=r"^packages/one/src/one/module\.py: is not committed"):
        wheels.build(project, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_built_is_named(wheels: ModuleType, project: Path, tmp_path: Path) -> None:
    (project / "packages/two/pyproject.toml").write_text(PROJECT.format("two").replace('"1.2"', '"no version"'))
    commit(project)
    with pytest.raises(wheels.Mistake, match=r"(?s)could not build the wheels of packages/.*version"):
        wheels.build(project, tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()
    git(project, "rm", "-rq", "packages")
    git(project, "commit", "-q", "-m", "gone")
    with pytest.raises(wheels.Mistake, match=r"the commit has no packages/"):
        wheels.build(project, tmp_path / "wheels")
    (tmp_path / "plain").mkdir()
    with pytest.raises(wheels.Mistake, match=r"plain: git status failed: .*not a git repository"):
        wheels.build(tmp_path / "plain", tmp_path / "wheels")
