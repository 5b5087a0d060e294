"""Wheels of packages/, and a release of them: from the commit, whatever lies in the checkout beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from checking import import_tool
from common import ROOT
from fork import GIT, commit, git

from samebits.testing.processes import called

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
PROJECT = '[build-system]\nrequires = ["setuptools>=68"]\n[project]\nname = "{0}"\nversion = "1.2"\n'
FOUND = '[tool.setuptools.packages.find]\nwhere = ["src"]\n'


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    return import_tool("wheels")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two small packages, committed, that can be released."""
    root = tmp_path / "project"
    for name in ("one", "two"):
        folder = root / "packages" / name
        (folder / "src" / name).mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PROJECT.format(name) + FOUND)
        (folder / "src" / name / "__init__.py").write_text('__version__ = "1.2"\n')
        (folder / "CHANGELOG.md").write_text("# Changes\n\n## 1.2\n\nNew.\n\n## 1.1\n")
        (folder / "src" / name / "module.py").write_text("x = 1\n")
    shutil.copy2(root / "packages/one/CHANGELOG.md", root)
    (root / "pyproject.toml").write_text(PROJECT.format("all"))
    (root / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2\n")
    (root / ".gitignore").write_text("build/\n*.egg-info/\n")
    return commit(root)


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
    (project / "notes.txt").touch()
    commit(project)
    git(tmp_path, "clone", "-q", "--depth", "1", project.as_uri(), "shallow")
    git(tmp_path / "shallow", "config", "core.autocrlf", "true")
    git(tmp_path / "shallow", "config", "tar.umask", "0077")
    again = wheels.build(tmp_path / "shallow", tmp_path / "b")
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


@pytest.mark.slow
def test_a_wheel_that_pip_builds_in_the_checkout_holds_what_is_there(tmp_path: Path) -> None:
    """As `pip install ./packages/x` does it, in a checkout where another version was built before."""
    left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "packages", tmp_path / "packages", ignore=left)
    for distribution, packages in (("samebits", ("samebits", "hydra_plugins")), ("h5rows", ("h5rows",))):
        source = tmp_path / "packages" / distribution / "src"
        module = source / packages[0] / "locks.py"
        for _again in range(2):
            module = module.rename(module.with_name(f"{module.stem}_.py"))
            build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
            called([*build, "-w", tmp_path, source.parent], seconds=120, cwd=tmp_path, fresh=True)
            (wheel,) = tmp_path.glob("*.whl")
            names = modules(wheel)
            wheel.unlink()
            own = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
            assert names == {name for name in own if name.split("/")[0] in packages and "__pycache__" not in name}
            assert f"{distribution}/py.typed" in names


def test_ci_tries_the_wheels_where_nothing_else_is() -> None:
    """h5rows' README and commands, each module of samebits: .ci/wheels, which installs torch from an index."""
    (job,) = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    assert {"run": ".ci/wheels"} in job["steps"]  # without a condition
    assert os.access(ROOT / ".ci/wheels", os.X_OK)


# -- a release -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def releases() -> ModuleType:
    return import_tool("release")


def test_a_release_builds_and_names_what_to_push(releases: ModuleType, project: Path, tmp_path: Path) -> None:
    commands = releases.release(project, tmp_path / "wheels")
    head = git(project, "rev-parse", "HEAD").strip()
    assert commands == [f"git tag -a v1.2 -m 'Version 1.2' {head}", "git push origin v1.2"]
    assert len(list((tmp_path / "wheels").glob("*-1.2-*.whl"))) == 2
    assert git(project, "tag") == ""
    subprocess.run(commands[0].replace("git", " ".join(GIT), 1), shell=True, cwd=project, check=True)
    with pytest.raises(releases.Mistake, match=r"^v1\.2: is a tag already"):
        releases.release(project, tmp_path / "again")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("packages/two/CHANGELOG.md", "1.2\n", "1.20\n", "^packages/two/CHANGELOG.md: has no section '## 1.2'"),
        ("CHANGELOG.md", "1.2\n", "1.2 (unreleased)\n", "^CHANGELOG.md: has no section '## 1.2'"),
        ("pyproject.toml", "1.2", "1.3", "^the versions differ: pyproject.toml has 1.3, CITATION"),
        ("packages/one/src/one/__init__.py", "1.2", "1.3", "^the versions differ: .*packages/one/src/one/.* has 1.3"),
    ],
)  # fmt: skip
def test_a_release_is_refused(
    releases: ModuleType, project: Path, tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    path = project / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(releases.Mistake, match=rf"^{file}: is not committed"):
        releases.release(project, tmp_path / "wheels")
    commit(project)
    with pytest.raises(releases.Mistake, match=said):
        releases.release(project, tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()


def test_the_versions_agree(releases: ModuleType) -> None:
    releases.one_version(ROOT)
