"""What a run records of the code: a patch that can be applied whatever git's user has set, and null for no answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.code import environment
from samebits.code.environment import ENVIRONMENT, Code, code_here, code_of, source_of, surroundings
from samebits.files import write_json

SETTINGS = {
    "none": "",
    "prefixes": "[diff]\n mnemonicPrefix = true\n",
    "no prefix": "[diff]\n noprefix = true\n",
    "other prefixes": "[diff]\n srcPrefix = x/\n dstPrefix = y/\n",
    "colors": "[color]\n ui = always\n diff = always\n status = always\n",
    "a tool": "[diff]\n external = echo\n",
    "a driver": "[core]\n attributesFile = {home}/attributes\n[diff \"mine\"]\n command = echo\n textconv = wc\n",
    "context": "[diff]\n context = 0\n interHunkContext = 9\n algorithm = patience\n suppressBlankEmpty = true\n",
    "names": "[diff]\n renames = copies\n relative = true\n[core]\n quotePath = false\n",
    "ignored": "[core]\n excludesFile = {home}/ignored\n[status]\n showUntrackedFiles = no\n",
    "whitespace": "[apply]\n whitespace = error\n ignoreWhitespace = change\n[core]\n whitespace = tab-in-indent\n",
    "a pager": "[core]\n pager = false\n[pager]\n diff = false\n log = false\n[log]\n showSignature = true\n",
}  # fmt: skip
EDITED = {
    "src/lab/loop.py": b"one\n\n2\nthree \n\t\tfour\n",
    "src/caf\u00e9.py": b"changed\n",
    "notes/latin.txt": b"caf\xe9\n",
    "data/digits.bin": bytes(range(256)),
}
NEW = {"src/new one.py": b"x = 1\n", "src/mine_local.py": b"y = 1\n", 'src/quote"s.py': b"z = 1"}


def git(folder: Path, *words: str, **options: object) -> bytes:
    named = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.fsync=none", "-C", str(folder)]
    return subprocess.run([*named, *words], check=True, capture_output=True, **options).stdout  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environment._say.cache_clear()
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "attributes").write_text("* diff=mine\n")
    (tmp_path / "ignored").write_text("*_local.py\n")
    return tmp_path


@pytest.fixture
def project(home: Path) -> Path:
    """In a folder of its repository, so that names in a patch begin with that folder's."""
    project = home / "repository/my project"
    for name, content in {
        **dict.fromkeys(EDITED, b"1\n\n2\n3\n\0"[:-1]),
        "src/gone.py": b"moved as it is\n" * 9,
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
    (project / "data/digits.bin").write_bytes(b"\0" * 99)
    git(project.parent, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    return project


def edit(project: Path) -> dict[str, bytes]:
    for name, content in {**EDITED, **NEW}.items():
        (project / name).write_bytes(content)
    (project / "src/gone.py").rename(project / "moved.py")
    git(project, "add", "moved.py", "src/gone.py")
    return {**EDITED, **NEW, "moved.py": b"moved as it is\n" * 9}


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_patch_holds_every_edit_whatever_git_s_user_has_set(
    home: Path, project: Path, settings: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = code_here(project)
    files = edit(project)
    plain = surroundings(project)
    (home / ".gitconfig").write_text(SETTINGS[settings].format(home=home))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "echo")
    monkeypatch.setenv("GIT_INDEX_FILE", str(home / "no index"))  # as in a hook
    known = surroundings(project)
    monkeypatch.delenv("GIT_INDEX_FILE")
    monkeypatch.delenv("GIT_DIFF_OPTS")
    monkeypatch.delenv("GIT_EXTERNAL_DIFF")
    (home / ".gitconfig").unlink()
    assert not caplog.messages
    assert known.environment["git_dirty"] is True
    assert known.diff == plain.diff or settings == "ignored"
    assert code_here(project, known) == code_here(project) != clean
    assert "with changes" in str(code_here(project, known))
    git(project, "clone", "-q", "..", str(home / "again"))
    git(home / "again", "apply", "-", input=os.fsencode(known.diff))
    assert {name: (home / "again/my project" / name).read_bytes() for name in files} == files
    assert not (home / "again/my project/src/gone.py").exists()
    assert source_of(home / "again/my project") == known.environment["source"]


@pytest.mark.parametrize("name", ["src/lab/loop.py", "src/caf\u00e9.py", "src/mine_local.py", "src/x/large.txt"])
@pytest.mark.parametrize("hidden", [False, True])
def test_each_edit_below_src_is_another_code(project: Path, home: Path, name: str, hidden: bool) -> None:
    """Those too that git was told to ignore, and each of two edits of a file that is only named."""
    (home / ".gitconfig").write_text(SETTINGS["ignored"].format(home=home))
    if hidden and (project / name).exists():
        git(project, "update-index", "--assume-unchanged", name)
    found = [code_here(project)]
    (project / name).parent.mkdir(exist_ok=True)
    for text in ("a", "b"):
        (project / name).write_text(text * (environment.MOST_OF_ONE + 1 if "large" in name else 1))
        found.append(code_here(project))
    assert len(set(found)) == 3


def test_an_edit_in_the_second_of_the_commit_is_in_the_patch(project: Path) -> None:
    """Of as many bytes, which git finds by times alone."""
    file, second = project / "src/lab/loop.py", -1
    while second != int(time.time()):
        second = int(time.time())
        file.write_text("x = 1\n")
        git(project, "commit", "-qam", "y", "--allow-empty")
        file.write_text("x = 2\n")
    while second == int(time.time()):  # later an edit's time says nothing: the commit's has to be known
        time.sleep(0.01)
    known = surroundings(project)
    assert "+x = 2" in known.diff
    assert code_here(project, known).changes


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("name", ["src/lab/loop.py", "conf/model/own.yaml"])
def test_an_edit_that_git_was_told_to_ignore_is_in_the_patch(project: Path, home: Path, name: str, flag: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("committed\n")
    git(project, "add", name)
    git(project, "commit", "-qm", "y")
    git(project, "update-index", flag, name)
    assert surroundings(project).environment["git_dirty"] is False
    file.write_text("changed\n")
    known = surroundings(project)
    assert (known.diff.count("\n+changed\n"), known.environment["git_dirty"]) == (1, True)


def test_a_large_binary_file_is_named_and_the_rest_can_be_applied(project: Path, home: Path) -> None:
    (project / "data/digits.bin").write_bytes(os.urandom(environment.MOST_OF_ONE + 1))
    (project / "src/lab/loop.py").write_text("changed\n")
    diff = surroundings(project).diff
    assert "# changed, not in this patch: my project/data/digits.bin\n" in diff
    git(project, "clone", "-q", "..", str(home / "again"))
    git(home / "again", "apply", "-", input=diff.encode())
    assert (home / "again/my project/src/lab/loop.py").read_text() == "changed\n"


def test_a_folder_that_is_now_a_link_does_not_matter(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as outputs/, which is then on another disk."""
    monkeypatch.setattr(environment, "_say", pytest.fail)
    shutil.move(project / "data", home / "disk")
    (project / "data").symlink_to(home / "disk")
    diff = surroundings(project).diff
    git(home, "clone", "-q", str(project.parent), "again")
    git(home / "again", "apply", "-", input=diff.encode())
    assert not (home / "again/my project/data").exists()


def test_a_file_that_is_now_a_folder_is_in_the_patch(project: Path, home: Path) -> None:
    file = project / "src/lab/loop.py"
    file.unlink()
    file.mkdir()
    (file / "part.py").write_text("x = 1\n")
    diff = surroundings(project).diff
    git(home, "clone", "-q", str(project.parent), "again")
    git(home / "again", "apply", "-", input=diff.encode())
    assert (home / "again/my project/src/lab/loop.py/part.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        (["core.ignoreCase=true"], ""),
        (["core.autocrlf=true"], ""),
        (["core.autocrlf=input"], ""),
        ([], "* text=auto\n"),
    ],
)
def test_new_files_are_in_the_patch_whatever_git_converts(
    project: Path, home: Path, settings: list[str], attributes: str
) -> None:
    """A name that differs from another in case only; lines that end with CRLF."""
    (project / ".gitattributes").write_text(attributes)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "attributes")
    for setting in settings:
        git(project, "config", *setting.split("="))
    new = {"src/lab/Loop.py": b"x = 1\n", "src/lab/lines.py": b"x = 1\r\ny = 2\r\n", "src/lab/empty.py": b""}
    for name, content in new.items():
        (project / name).write_bytes(content)
    (project / "src/lab/lines.py").chmod(0o755)
    diff = surroundings(project).diff
    git(home, "clone", "-q", str(project.parent), "again")
    git(home / "again", "apply", "-", input=diff.encode())
    for name, content in new.items():
        found = home / "again/my project" / name
        assert found.read_bytes().replace(b"\r\n", b"\n") == content.replace(b"\r\n", b"\n")
    assert (home / "again/my project/src/lab/lines.py").stat().st_mode & 0o100


def test_the_repository_stays_as_it_is(project: Path) -> None:
    edit(project)
    files = {path: path.read_bytes() for path in (project.parent / ".git").rglob("*") if path.is_file()}
    surroundings(project)
    assert {path: path.read_bytes() for path in (project.parent / ".git").rglob("*") if path.is_file()} == files


def as_it_is(project: Path) -> None:
    pass


def detached(project: Path) -> None:
    git(project, "checkout", "-q", "--detach")


def ignored_by_its_user(project: Path) -> None:
    (project.parents[1] / ".gitconfig").write_text(SETTINGS["ignored"].format(home=project.parents[1]))
    (project / "of_local.py").write_text("x = 1\n")


def ignored_code(project: Path) -> None:
    ignored_by_its_user(project)
    (project / "src/of_local.py").write_text("x = 1\n")


def with_a_stash(project: Path) -> None:
    edit(project)
    git(project, "stash", "--include-untracked")
    git(project, "config", "status.showStash", "true")


def beside_the_project(project: Path) -> None:
    (project.parent / "more").mkdir()
    (project.parent / "more/new.bin").write_bytes(b"\0")


def within_a_submodule(project: Path) -> None:
    git(project, "clone", "-q", "..", "other")
    git(project, "add", "other")
    git(project, "commit", "-qm", "with a submodule")
    git(project, "config", "diff.ignoreSubmodules", "all")
    (project / "other/new.py").write_text("x = 1\n")


def edited(project: Path) -> None:
    edit(project)


def without_a_commit(project: Path) -> None:
    git(project, "update-ref", "-d", "HEAD")


@pytest.mark.parametrize(
    ("change", "dirty", "most"),
    [
        (as_it_is, False, 2),
        (detached, False, 2),
        (ignored_by_its_user, False, 2),
        (ignored_code, True, 10),
        (with_a_stash, False, 2),
        (beside_the_project, True, 7),
        (within_a_submodule, True, 6),
        (edited, True, 10),
        (without_a_commit, True, 2),
    ],
)
def test_git_is_called_rarely(
    project: Path, change: Callable[[Path], None], dirty: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for a tree without changes."""
    change(project)
    calls: list[str] = []
    call = environment.git

    def counted(folder: Path, *words: str, **how: Any) -> bytes:
        calls.append(words[0])
        return call(folder, *words, **how)

    monkeypatch.setattr(environment, "git", counted)
    known = surroundings(project)
    assert len(calls) <= most, calls
    commit = None if change is without_a_commit else git(project, "rev-parse", "HEAD").decode().strip()
    assert (known.environment["git_commit"], known.environment["git_dirty"]) == (commit, dirty)
    assert bool(known.diff) == (change in (edited, ignored_code))


def git_as(script: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "bin").mkdir()
    (project / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
    (project / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project / 'bin'}:{os.environ['PATH']}")


def no_git(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PATH", str(project))
    return "git is not installed"


def of_another_owner(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "0")
    git_as("printf 'fatal: dubious\\n\\tgit config --add safe\\n' >&2; exit 128", project, monkeypatch)
    return "fatal: dubious git config --add safe"


def no_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (project.parent / ".git").rename(project.parent / "away")
    return "not a git repository"


def too_slow(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    git_as("exec sleep 60", project, monkeypatch)
    for name in ("programs.LIMIT_S", "code.environment.QUICK_S"):
        monkeypatch.setattr(f"samebits.{name}", 0.2)
    return "git did not answer within"


def that_says_more(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    git_as(f'echo module git is loaded; exec {shutil.which("git")} "$@"', project, monkeypatch)
    return "git status printed 'module git is loaded"


def silent(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    git_as("true", project, monkeypatch)
    return "git status printed ''"


@pytest.mark.parametrize("refuse", [no_git, of_another_owner, no_repository, too_slow, that_says_more, silent])
def test_no_answer_is_null_and_a_line(
    project: Path, refuse: Callable[[Path, pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, home: Path,
) -> None:  # fmt: skip
    """The code is compared all the same."""
    reason = refuse(project, monkeypatch)
    for _ in range(2):
        known = surroundings(project)
    assert (known.environment["git_commit"], known.environment["git_dirty"], known.diff) == (None, None, "")
    (line,) = caplog.messages
    assert reason in line
    assert "\n" not in line
    before = code_here(project, known)
    assert before == code_here(project)
    assert str(before).startswith("no commit, files ")
    (project / "src/lab/loop.py").write_text("changed\n")
    assert before != code_here(project)


def test_a_damaged_index_leaves_the_commit(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    (project.parent / ".git/index").write_bytes(b"x")
    known = surroundings(project).environment
    commit = git(project, "rev-parse", "HEAD").decode().strip()
    assert (known["git_commit"], known["git_dirty"]) == (commit, None)
    line, more = caplog.messages
    assert line.startswith("environment.json contains null for git_dirty: fatal: ")
    assert more.startswith("uncommitted.diff: not written, so uncommitted changes cannot be restored later: ")


def test_what_is_not_known_equals_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / ENVIRONMENT, {"git_commit": None, "git_dirty": False})  # as an older version wrote it
    assert not code_of(tmp_path) == code_of(tmp_path)  # noqa: SIM201
    assert Code(None, "x", "") == Code("a", "x", "y")
    write_json(tmp_path / ENVIRONMENT, {"git_commit": "a" * 40, "git_dirty": False})
    assert code_of(tmp_path) == code_of(tmp_path)
