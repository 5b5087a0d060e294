"""Which code a run ran with: src/, the packages of its repository, and libraries that lie elsewhere."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from samebits.code import Code, by_code, changes_of, code_changes, code_of, codes_of, environment, source, use_code
from samebits.code.environment import ENVIRONMENT, code_here, surroundings
from samebits.code.source import code_folders, libraries_of, library_changes, python_path
from samebits.files import write_json
from samebits.loggers.wandb_log import upload_environment
from samebits.runs import directory
from samebits.saved import flat
from samebits.schema import plain
from samebits.sweeps.verify.recompute import undo_changes

PAGE = '"""A library."""\n__version__ = "0.2.0"\n'
FILES = {
    "rows_of/__init__.py": PAGE,
    "rows_of/deep/order.py": "x = 1\n",
    "hydra_plugins/rows_of_sweep/one.py": "y = 1\n",
}


def git(folder: Path, *words: str) -> None:
    named = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.fsync=none", "-C", str(folder)]
    subprocess.run([*named, *words], check=True, capture_output=True)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def commit(project: Path) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-qm", "x")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository; its library is to be called rows_of."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, {".config/git/ignore": "*_local.py\n"})
    monkeypatch.setattr(source, "LIBRARIES", ("rows_of",))
    environment._say.cache_clear()
    project = write(tmp_path / "project", {"src/lab/loop.py": "z = 1\n", ".gitignore": "*.egg-info\n__pycache__\n"})
    git(tmp_path, "init", "-q", "project")
    commit(project)
    return project


@pytest.fixture
def vendored(project: Path) -> Path:
    """With packages/rows-of, whose folder of modules is returned."""
    folder = write(project / "packages/rows-of/src", FILES)
    commit(project)
    return folder


@pytest.fixture
def site(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages with the library and what is not of it."""
    site = write(tmp_path / "site-packages", FILES)
    write(site, {"torch/__init__.py": "", "hydra_plugins/hydra_colorlog/one.py": ""})
    monkeypatch.syspath_prepend(str(site))
    return site


def said(was: Code, now: Code) -> list[str]:
    """Of two codes that must differ, also in how they are called."""
    assert was != now
    assert str(was) != str(now)
    return code_changes(was, now)


# -- packages of the repository --------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("name", ["rows_of/deep/order.py", "rows_of/new.py", "rows_of/new_local.py", "other/more.py"])
def test_each_edit_of_a_package_is_another_code(project: Path, vendored: Path, name: str, committed: bool) -> None:
    """Committed, uncommitted, new, and ignored by git's user; the patch holds what is not committed."""
    clean = code_here(project)
    write(vendored, {name: "x = 2\n"})
    if committed:
        git(project, "add", "-f", ".")
        commit(project)
    known = surroundings(project)
    edited = code_here(project, known)
    assert said(clean, edited) == ["rows-of 0.2.0: same version, different content"]
    assert bool(edited.changes) == (not committed)
    assert ("x = 2" in known.diff) == (not committed)
    if committed:
        assert edited.commit != clean.commit
    write(vendored, {name: "x = 3\n"})
    assert said(edited, code_here(project))


def test_edits_beside_the_packages_are_the_same_code(project: Path, vendored: Path) -> None:
    clean = code_here(project)
    write(vendored, {"rows_of/__pycache__/a.pyc": "", "rows_of.egg-info/PKG-INFO": "", "../tests/test_a.py": ""})
    write(project, {"packages/README.md": "", "docs/more.md": ""})
    assert code_here(project) == clean
    assert str(code_here(project)) == str(clean) == f"commit {clean.commit:.7}"


def test_a_removal_in_a_package_that_git_was_told_to_ignore_is_in_the_patch(project: Path, vendored: Path) -> None:
    git(project, "update-index", "--assume-unchanged", "packages/rows-of/src/rows_of/deep/order.py")
    (vendored / "rows_of/deep/order.py").unlink()
    assert "rows_of/deep/order.py\ndeleted file mode" in surroundings(project).diff


# -- libraries elsewhere ---------------------------------------------------------------------------------------------


def test_another_wheel_is_another_code(project: Path, site: Path) -> None:
    """So are other files of the same version, and an edit of an installed file."""
    began = code_here(project)
    assert str(began).startswith(f"commit {began.commit:.7} [rows_of 0.2.0 ")
    write(site, {"rows_of/__init__.py": PAGE.replace("0.2.0", "0.2.1")})
    assert said(began, code_here(project)) == ["rows_of 0.2.0 -> 0.2.1"]
    write(site, {"rows_of/__init__.py": PAGE})
    assert code_here(project) == began
    for name in ("rows_of/deep/order.py", "hydra_plugins/rows_of_sweep/one.py", "rows_of/new.py"):
        write(site, {name: "x = 2\n"})
        assert said(began, code_here(project)) == ["rows_of 0.2.0: same version, different content"]
        write(site, FILES)
        (site / "rows_of/new.py").unlink(missing_ok=True)
    shutil.rmtree(site / "rows_of")
    assert said(began, code_here(project)) == ["rows_of 0.2.0 -> none"]


def test_what_else_is_installed_is_not_the_library_s(project: Path, site: Path) -> None:
    began = code_here(project)
    write(site, {"rows_of/__pycache__/a.pyc": "", "torch/__init__.py": "1", "hydra_plugins/hydra_colorlog/two.py": ""})
    assert code_here(project) == began


def test_the_version_of_a_package_that_does_not_say_it_is_its_metadata_s(project: Path, site: Path) -> None:
    write(site, {"rows_of/__init__.py": ""})
    assert libraries_of(project)["rows_of"]["version"] is None
    write(site, {"rows_of-0.7.dist-info/METADATA": "Metadata-Version: 2.1\nName: rows_of\nVersion: 0.7\n"})
    assert libraries_of(project)["rows_of"]["version"] == "0.7"


def test_an_editable_installation_elsewhere_is_hashed_as_it_is(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "checkout/src", {**FILES, "unrelated/a.py": ""})
    monkeypatch.syspath_prepend(str(folder))
    began = code_here(project)
    assert libraries_of(project)["rows_of"]["place"] == str(folder)
    write(folder, {"unrelated/a.py": "1"})
    assert code_here(project) == began
    write(folder, {"rows_of/deep/order.py": "x = 2\n"})
    assert said(began, code_here(project)) == ["rows_of 0.2.0: same version, different content"]


def test_the_same_files_are_the_same_code_however_they_are_installed(
    project: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel, a vendored copy, an editable installation of it."""
    of_wheel = libraries_of(project)
    write(project / "packages/rows_of/src", FILES)
    monkeypatch.syspath_prepend(str(project / "packages/rows_of/src"))
    of_copy = libraries_of(project)
    assert [one["rows_of"]["place"] for one in (of_wheel, of_copy)] == [str(site), "packages/rows_of/src"]
    assert library_changes(of_wheel, of_copy) == []
    assert Code("a", "b", "", of_wheel) == Code("a", "b", "", of_copy)


def test_a_library_in_src_is_part_of_src(project: Path, site: Path) -> None:
    """Whatever is installed beside it."""
    write(project / "src", FILES)
    assert libraries_of(project) == {}
    began = code_here(project)
    write(project / "src", {"rows_of/deep/order.py": "x = 2\n"})
    assert said(began, code_here(project)) == ["src/"]


def test_an_installed_package_that_is_imported_in_place_of_the_vendored_one_counts(
    project: Path, vendored: Path, site: Path
) -> None:
    vendored.parent.rename(vendored.parents[1] / "rows_of")
    assert libraries_of(project)["rows_of"]["place"] == str(site)
    own = code_folders(project)
    assert libraries_of(project, own)["rows_of"]["place"] == "packages/rows_of/src", "where that comes first"


# -- what is recorded ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(project: Path, site: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    known = surroundings(project)
    write_json(run / ENVIRONMENT, known.environment)
    assert code_of(run) == code_here(project, known)
    return run


def test_a_run_of_an_older_version_has_recorded_none(project: Path, site: Path, run: Path) -> None:
    """That is said, and equals no library; where none lies outside of src/ it is no difference."""
    facts = json.loads((run / ENVIRONMENT).read_text())
    del facts["libraries"]
    write_json(run / ENVIRONMENT, facts)
    older, here = code_of(run), code_here(project)
    assert said(older, here) == ["libraries not recorded -> rows_of 0.2.0"]
    assert str(older) == f"commit {older.commit:.7} [libraries not recorded]"
    assert code_changes(here, older) == ["libraries rows_of 0.2.0 -> not recorded"]
    assert by_code([(0, older), (1, older), (2, here)]).startswith(f"jobs 0, 1 with {older}, job 2 with {here}")
    shutil.rmtree(site / "rows_of")
    assert code_here(project) == older
    assert code_changes(older, code_here(project)) == []


def test_a_resume_records_the_libraries_with_which_it_goes_on(
    project: Path, site: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; what the run began with stays. Those of older versions are read without."""
    monkeypatch.setattr(directory, "load_flat", lambda *_: {})
    monkeypatch.setattr(directory, "plain", lambda *_, **__: {})
    write(run, {"checkpoints/last_000000004.pt": ""})
    began, asked = code_of(run), (SimpleNamespace(root=project), run, {})
    directory.keep_changes(*asked)  # type: ignore[arg-type]
    assert codes_of(run) == [began]
    write(site, {"rows_of/__init__.py": PAGE.replace("0.2.0", "0.3.0")})
    for _ in range(2):
        directory.keep_changes(*asked)  # type: ignore[arg-type]
    was, now = codes_of(run)
    assert was == began
    assert code_changes(was, now) == ["rows_of 0.2.0 -> 0.3.0"]
    facts = json.loads((run / ENVIRONMENT).read_text())
    (change,) = facts["changes"]
    write_json(run / ENVIRONMENT, {**facts, "changes": [{**change, "code": change["code"][:3]}]})
    assert codes_of(run)[-1].libraries is None
    assert codes_of(run)[-1] != now


def test_a_run_without_a_step_begins_with_the_libraries_that_are_there(project: Path, site: Path, run: Path) -> None:
    write(site, {"rows_of/__init__.py": PAGE.replace("0.2.0", "0.3.0")})
    use_code(run, surroundings(project))
    assert code_of(run) == code_here(project)


@pytest.mark.parametrize(
    "damage", [lambda code: code[:2], lambda code: [*code[:3], {"a": 1}], lambda code: [*code, 1], lambda code: [1] * 4]
)
def test_a_change_of_another_form_is_damage(run: Path, damage: Callable[[list[Any]], list[Any]]) -> None:
    facts = json.loads((run / ENVIRONMENT).read_text())
    good = ["a", "b", "", facts["libraries"]]
    write_json(run / ENVIRONMENT, {**facts, "changes": [{"after": 1, "code": good}]})
    assert len(codes_of(run)) == 2
    write_json(run / ENVIRONMENT, {**facts, "changes": [{"after": 1, "code": damage(good)}]})
    with pytest.raises(environment.CorruptFileError, match="its `changes` have an invalid form"):
        codes_of(run)


def test_every_plugin_is_part_of_a_library() -> None:
    """By its name: an installed one that was of none would be edited unnoticed."""
    home = Path(source.__file__).parents[2]
    plugins = [path.name for path in (home / "hydra_plugins").iterdir() if not path.name.startswith("_")]
    assert plugins
    assert [name for name in plugins if not name.startswith(tuple(f"{one}_" for one in source.LIBRARIES))] == []


# -- other processes -------------------------------------------------------------------------------------------------


def test_a_child_finds_the_packages(project: Path, vendored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before what is on PYTHONPATH; a project without packages/ has src/ alone."""
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    assert python_path(project) == f"{project}/src:{vendored}:/a:/b"
    assert upload_environment(project)["PYTHONPATH"] == python_path(project)
    shutil.rmtree(project / "packages")
    monkeypatch.delenv("PYTHONPATH")
    assert python_path(project) == f"{project}/src"


def test_what_a_resume_changed_comes_back_from_the_record(
    project: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no NaN and no infinity. An older version wrote null for NaN: the NaN of the config stays."""
    was = {"data.missing": math.nan, "data.fill": [1, -math.inf, math.inf], "data.folds": None, "optim.lr": 0.1}
    now = {"data": {"missing": "refuse", "fill": [2], "folds": 3}, "optim": {"lr": 0.2}}
    monkeypatch.setattr(directory, "load_flat", lambda *_: was)
    write(run, {"checkpoints/last_000000004.pt": ""})
    asked: Any = SimpleNamespace(root=project)
    directory.keep_changes(asked, run, OmegaConf.create(now))
    (change,) = changes_of(run)
    assert repr(change["was"]) == repr(was)
    undo_changes(project, cfg := OmegaConf.create(now), [change])
    assert repr(flat(plain(cfg))) == repr(was)
    undo_changes(project, cfg, [{"after": 4, "was": {"data.missing": None}}])
    assert repr(flat(plain(cfg))) == repr(was)
