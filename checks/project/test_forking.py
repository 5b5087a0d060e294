"""A fork: tools/fork.py and copier make the same, without a trace of what was left out, and update it."""

from __future__ import annotations

import ast
import errno
import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from common import ROOT
from fork import copy_of_the_project, run_python as run, with_fewer_digits
from shell import bare_python, environment_in, no_pictures, shell

from samebits.testing import result
from samebits.testing.processes import called, sample_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
KNOWN = re.compile(r'"lab\.|parts = data\.get')  # the old names of classes; config.parts_of
OWN = ("lab==", "samebits==", "h5rows==")
SMALL = ("logger=none", "hardware=cpu", "model.hidden=[8]", "trainer.max_epochs=null", "trainer.eval_every=4")


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    of_tests = sys.modules.pop("fork", None)  # checks/helpers/fork.py
    try:
        yield importlib.import_module("fork")
    finally:
        sys.path.remove(str(ROOT / "tools"))
        del sys.modules["fork"]
        if of_tests:
            sys.modules["fork"] = of_tests


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(copy_of_the_project(tmp_path_factory.mktemp("template")))


@pytest.fixture(scope="module")
def with_few_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template, forked in a second: most of the time is for its tests."""
    folder = copy_of_the_project(tmp_path_factory.mktemp("template"))
    for path in (folder / "tests").glob("*/**/test_*.py"):
        if not path.name.startswith(("test_task_", "test_state")):
            path.unlink()
    return commit(folder)


def fork(template: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run(template, "tools/fork.py", *arguments, code=code)


def files(folder: Path) -> dict[str, bytes]:
    left = (".git", ".venv", "__pycache__", ".copier-answers.yml", ".ruff_cache", "outputs")
    found = [path for path in folder.rglob("*") if path.is_file() and not set(left) & set(path.parts)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# -- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "is a keyword"), ("match", "is a keyword"), ("Mine", "expected a"), ("my-own", "expected a"),
        ("json", "Python's own library"), ("torch", "installed or required"), ("omegaconf", "installed or required"),
        ("samebits", "installed or required"), ("packages", "already"), ("train", "already"), ("conf", "already"),
        ("conftest", "already"), ("print", "Python's own library"), ("lab_", "expected a"),
        ("lab", "the template's own"), ("model", "is a variable"), ("a" * 21, "more than 20"),
    ],
)  # fmt: skip
def test_names_that_would_clash_are_refused(tools: Any, name: str, reason: str) -> None:
    with pytest.raises(tools.Mistake, match=reason):
        tools.check_name(name, "lab")


@pytest.mark.parametrize("name", ["climate", "cells", "folding", "engine", "x__y", "lab2"])
def test_other_names_are_accepted(tools: Any, name: str) -> None:
    """Variables of benchmarks/, which a fork does not get, and of files that do not have the name of the package."""
    tools.check_name(name, "lab")


def test_a_name_of_an_uninstalled_requirement_is_refused(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """copier runs with a Python of its own, where nothing of ours is installed."""
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    for name in ("numpy", "hydra", "samebits", "h5rows"):
        with pytest.raises(tools.Mistake, match="installed or required"):
            tools.check_name(name, "lab")
    tools.check_name("fold_it", "lab")


def test_copier_and_the_docs_name_every_part(tools: Any) -> None:
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    for kind in ("method", "experiment", "extra"):
        named = [name for name, part in tools.PARTS.items() if part.kind == kind]
        assert questions[f"without_{kind}s"]["choices"] == questions[f"only_{kind}s"]["choices"] == named
    rows = [f"| `{name}` | {part.about} |" for name, part in tools.PARTS.items()]
    assert "\n".join(rows) in (ROOT / "docs/fork.md").read_text()


# -- what is made ----------------------------------------------------------------------------------------------------


def modules_named(path: Path, forgotten: set[str]) -> set[str]:
    """All that a module imports, in functions too, and what a yaml names. forgotten: modules; lines that name one of
    them do not count."""
    text = path.read_text()
    if forgotten:
        told = re.compile(rf"\b({'|'.join(map(re.escape, forgotten))})\b")
        text = "".join(line for line in text.splitlines(keepends=True) if not told.search(line))
    if path.suffix == ".yaml":
        options = re.findall(r"override /?([\w/]+)(?:@\S+)?: (\w+)", text)
        return {*re.findall(r"_target_: ([\w.]+)\.\w+", text), *(f"{group}={option}" for group, option in options)}
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_each_part_has_files_of_its_own_that_nothing_else_needs(tools: Any) -> None:
    """So that a fork works without any choice of parts. Tests may be skipped where a part is not (`needs`)."""
    tracked = tools.tracked(ROOT)
    owners = {name: part for part, one in tools.PARTS.items() for name in one.files(tracked)}
    assert {*owners.values()} == {*tools.PARTS}
    assert sum(len(one.files(tracked)) for one in tools.PARTS.values()) == len(owners)  # none is of two parts
    needed = {}
    for name, part in owners.items():
        if name.startswith("src/"):
            needed[name.removeprefix("src/").removesuffix(".py").replace("/", ".")] = part
        elif found := re.fullmatch(r"conf/(.+)/(\w+)\.yaml", name):
            needed["=".join(found.groups())] = part
        elif name.startswith("tests/"):  # tests import from each other by their names
            needed[Path(name).stem] = part
    assert len(needed) > 60
    for name in tracked:
        if name.startswith(("src/", "tests/", "conf/")) and name.endswith((".py", ".yaml")):
            lines_go = Path(name).parent.name == "src" or Path(name).name in tools.FORGETTING
            others = {
                one: needed[one]
                for one in modules_named(ROOT / name, {*needed} if lines_go else set()) & {*needed}
                if needed[one] not in tools.with_needed([owners.get(name)])
            }
            assert others == {}, name


def test_a_test_that_chooses_an_option_of_a_part_is_skipped_without_it(tools: Any) -> None:
    """A file of tests that stays in a fork without the part names one of its files, in `needs`."""
    tracked = tools.tracked(ROOT)
    parts = {name: part.files(tracked) for name, part in tools.PARTS.items()}
    owners = {file: name for name, files in parts.items() for file in files}
    for name in tracked:
        if name.startswith("tests/") and name.endswith(".py"):
            text = (ROOT / name).read_text()
            options = re.findall(r"[\"' ]([\w/]+)=\[?([\w,]+)\]?[\"' ]", text)
            chosen = {f"conf/{group}/{one}.yaml" for group, several in options for one in several.split(",")}
            there = tools.with_needed([owners.get(name)])
            unnamed = {
                part: chosen & {*files} for part, files in parts.items() if not any(one in text for one in files)
            }
            assert {part: some for part, some in unnamed.items() if some and part not in there} == {}, name


def test_no_yaml_and_no_module_mentions_a_part_that_is_left_out(tools: Any, tmp_path: Path) -> None:
    """Each part alone: without all of them, the file that mentions one is often left out too."""
    tracked = tools.tracked(ROOT)
    modules = {name: (ROOT / name).read_text() for name in tracked if re.fullmatch(r"src/\w+/.*\.py", name)}
    for name, part in tools.PARTS.items():
        users = [one for user, one in tools.PARTS.items() if name in tools.with_needed([user])]
        tree, gone = tmp_path / name, [one for each in users for one in each.files(tracked)]
        shutil.copytree(ROOT / "conf", tree / "conf")
        for one in modules.keys() - gone:
            (tree / one).parent.mkdir(parents=True, exist_ok=True)
        before = {path: path.read_text() for path in (tree / "conf").rglob("*.yaml")}
        tools.delete(tree, gone)
        tools.forget(tree, gone, [part])
        told = tools.naming(tree, gone)
        for one in modules.keys() - gone:
            said = [line for line in modules[one].splitlines() if told.search(line)]
            assert one.endswith(tools.FORGETTING) or all(KNOWN.search(line) for line in said), (one, said)
        for path in (tree / "conf").rglob("*.yaml"):
            text = path.read_text()
            assert not told.search(text), (name, path.name, told.search(text))
            if text == before[path]:
                continue
            assert yaml.safe_load(text) == yaml.safe_load(before[path])  # only comments are deleted
            kept = text.splitlines()
            cut = [line for line in before[path].splitlines() if line not in kept]
            assert all(re.match(r"# ([A-Z]|\./run|  )", line) for line in cut), cut  # no half sentence is left


def test_only_the_keys_of_old_import_paths_keep_the_old_name(tools: Any, tmp_path: Path) -> None:
    (tmp_path / "src/lab").mkdir(parents=True)
    shutil.copy(ROOT / "src/lab/project.py", tmp_path / "src/lab")
    tools.rename(tmp_path, "mine")
    before, moved = (tmp_path / "src/mine/project.py").read_text().split("    moved={\n")
    assert not re.search(r"\blab\b", before)
    assert '"lab.": "mine."' in moved


def test_only_leaves_out_all_parts_but_these_and_what_they_need(tools: Any) -> None:
    tracked = tools.tracked(ROOT)
    assert tools.left_out([], [], tracked) == [*tools.PARTS]
    for named, kept in (
        ("gan,fixmatch", {"gan", "fixmatch", "mixed", "augmentation"}),
        ("whitened", {"whitened", "muon", "optimizer_base"}),  # the base class through muon
    ):
        assert {*tools.PARTS} - {*tools.left_out([], [named], tracked)} == kept
    with pytest.raises(tools.Mistake, match=r"^--only gann: no such part - did you mean gan\?"):
        tools.left_out([], ["gann"], tracked)
    users = "contrastive dpo mae streaming shakespeare"
    with pytest.raises(tools.Mistake, match=f"^--without language: {users} need it - leave out {users} too"):
        tools.left_out(["language", "gpt2"], None, tracked)
    with pytest.raises(tools.Mistake, match=r"^--without muon: whitened needs it - leave out whitened too"):
        tools.left_out(["muon"], None, tracked)
    without_it = [name for name in tracked if name not in tools.PARTS["whitened"].files(tracked)]
    assert tools.left_out(["muon"], None, without_it) == ["muon"]  # in a fork that has left it out before


@pytest.fixture(scope="module")
def parts(tools: Any) -> list[str]:
    return [*tools.PARTS]


# pytest collects, then all modules of the package are imported, also those that saved configs have under an older name
COLLECT = """
import importlib, pkgutil, sys
import pytest
status = pytest.main(["-q", "--collect-only", "-m", "", "-p", "no:cacheprovider", "--assert=plain", "tests"])
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    importlib.import_module(module.name)
for module in importlib.import_module(f"{sys.argv[1]}.project").PROJECT.moved.values():
    if not module.endswith("."):
        importlib.import_module(module.rpartition(".")[0])
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fork_without_any_part(template: Path, tools: Any, tmp_path: Path) -> None:
    """Of a long name that sorts behind all others: it has no trace of what was left out, and works. It trains in
    test_a_clone_of_a_fork_needs_nothing_else; with a copy of the libraries it is as the template, see below."""
    asked = ("zebrafish_tracking", "--title", "Our fish", "--only", "--into", str(tmp_path))
    done = fork(template, *asked)
    assert done.stderr == ""
    assert re.fullmatch(r"\S+: the package is .*\nnext, in .*\n(  .*\n)+", done.stdout)  # nothing of ruff's
    assert f'git commit -m "Fork of {git(template, "log", "-1", "--format=%h").strip()}"' in done.stdout
    made, before = files(tmp_path), files(template)
    check_name(made)
    check_trace(tools, tmp_path, made, {name.replace("/lab/", "/zebrafish_tracking/") for name in before})
    check_entries(tmp_path)
    assert not (tmp_path / "packages").exists()
    assert len([*tmp_path.glob("vendor/*.whl")]) == 2
    page = " ".join((ROOT / "docs/fork.md").read_text().split())
    for folder in ("src", "tests"):
        (most,) = re.findall(rf"fewer than ([\d,]+) (?:lines )?in `{folder}`", page)
        lines = sum(data.count(b"\n") for name, data in made.items() if re.fullmatch(rf"{folder}/.*\.py", name))
        assert lines < int(most.replace(",", "")), folder
    for command in (["ruff", "check", "-q", "."], ["ruff", "format", "--check", "-q", "."], ["yamllint", "-s", "."]):
        run(tmp_path, "-m", *command)
    assert run(tmp_path, "tools/schema.py", "--check").stdout == ""  # fork.py takes out what is gone without torch
    assert run(tmp_path, "tools/reference.py", "--check").stdout == ""  # `./run docs` changes no tracked file
    old = shutil.copytree(ROOT / "checks/runs/whole-finished", tmp_path / "outputs/old")
    run(tmp_path, "src/evaluate.py", str(old), "--split", "val")
    run(tmp_path, "-c", COLLECT, "zebrafish_tracking")


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_the_generated_pages_of_a_fork_are_up_to_date(
    with_few_tests: Path, parts: list[str], tmp_path: Path, first: int
) -> None:
    """Otherwise `./run docs` changes tracked files, and `copier update` refuses. Each part is in one of the two."""
    fork(with_few_tests, "zebrafish_tracking", "--vendor", "--only", *parts[first::2], "--into", str(tmp_path))
    done = run(tmp_path, "tools/reference.py", "--check", code=None)
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def check_name(made: dict[str, bytes]) -> None:
    for name in made:
        if name.startswith(("conf/", "src/", "tests/")):
            lines = made[name].decode(errors="ignore").splitlines()
            old = [line for line in lines if re.search(r"(?<![\w-])lab(?![\w-])", line)]
            assert all('    "lab.' in line for line in old), (name, old)  # PROJECT.moved


def check_trace(tools: Any, folder: Path, made: dict[str, bytes], before: set[str]) -> None:
    """No name of a deleted file, or of a part, in any text but prose; names that other files have too may stay."""
    assert {name for name in made if not name.startswith("vendor/")} < before
    assert not [name for name in made if name.startswith(("checks/", "benchmarks/"))]
    folders = (
        "conf/model/", "conf/task/", "conf/experiment/", "conf/callback/", "conf/data/order/",
        "src/zebrafish_tracking/", "notebooks/",
    )  # fmt: skip
    deleted = {Path(name).stem for name in before - made.keys() if name.startswith(folders)}
    gone = (deleted | {"benchmarks", "notebooks"}) - {Path(name).stem for name in made}
    # words that have another meaning, too; `named_there` below finds the files and options of these parts
    gone -= {
        "clip", "color", "columns", "curves", "energy", "first_batch", "generation", "graph", "language", "mae",
        "mixed", "onnx", "parts", "renamed", "retrieval", "sequences", "streaming", "summary", "tokens", "views",
        "waits",
    }  # fmt: skip
    assert {"byol", "autoencoder", "token_buckets", "cifar10_fast", "sample_text", "tour", "benchmarks"} < gone
    named = re.compile(rf"(?<![\w.-])({'|'.join(gone)})(?![\w-])")
    own = sorted(name for name in before - made.keys() if not name.startswith(("packages/", "checks/")))
    named_there = tools.naming(folder, own, [word for words in tools.WORDS.values() for word in words])
    found: dict[str, list[str]] = {}
    kept = ("tools/", "docs/fork.md", "CHANGELOG.md", "packages/")  # say what there is to leave out; are untouched
    for name, data in made.items():
        if name.startswith(kept) or b"\0" in data:
            continue
        text = data.decode(errors="ignore")
        if name.startswith("tests/") and re.search(r"^pytestmark = needs\(", text, re.MULTILINE):
            continue  # skipped as a whole without these files
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(('"""', "#", '"lab.'))]
        # rows of tests about several options, skipped without one
        skipped = (
            r"for notebooks|marks=MUON|kind == \"muon|needs\(\"|\(\"optim=|\"task=|\"gpt\"|SMALL_GPT|\"data=tokens\""
        )
        left = [line for line in lines if named.search(line) and not re.search(skipped, line)]
        if name.startswith(("src/", "conf/")) and name != "conf/schema.json":  # also in docstrings and comments
            left += [line for line in text.splitlines() if named_there.search(line) and not KNOWN.search(line)]
        found |= {name: left} if left else {}
        assert "template only" not in text, name
        if name.endswith(".md"):  # a colon leads to code, a file's name, a list, a table or a formula
            leads_to = r"`[^`\n]+`:\n|```|[-|>!<]|\d+\. |    |sparsity\(t\)"
            assert re.findall(rf"^[^#\n].*:\n\n(?!{leads_to})", text, re.MULTILINE) == [], name
            assert re.findall(r"^\|.*\n\|[-| ]+\n(?!\|)", text, re.MULTILINE) == [], name  # a table without rows
        if name.endswith(".md"):
            assert "sweeper=optuna" not in text, name
    assert not found, "\n".join(f"{name}: {line}" for name, lines in found.items() for line in lines)


def check_entries(folder: Path) -> None:
    """pyproject.toml names no file or folder that is not there."""
    text = (folder / "pyproject.toml").read_text()
    named = re.findall(r'^ *"([\w./-]+)",$', text, re.MULTILINE)
    paths = [name for name in named if "/" in name or name in ("src", "tests")]
    assert {"src", "tests"} <= {*paths}
    assert [name for name in paths if not (folder / name).exists()] == []


def test_a_new_folder_is_whole_or_not_there(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file the fork is killed at; the same command again makes it."""
    tree, folder = tmp_path / "tree", tmp_path / "above" / "fork"
    for name in ("a.py", "src/b.py", "src/c/d.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    copied: list[Path] = []

    def killed(source: Path, target: Path) -> None:
        if len(copied) == 1:
            raise KeyboardInterrupt
        copied.append(target)
        shutil.copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(tools.shutil, "copy2", killed)
        with pytest.raises(KeyboardInterrupt):
            tools.place_whole(tree, folder)
    assert copied
    assert not folder.exists()
    tools.check_folder(folder, keeps=True)
    tools.place_whole(tree, folder)
    assert files(folder) == files(tree)
    assert [path.name for path in folder.parent.iterdir()] == ["fork"]
    with pytest.raises(tools.Mistake, match=r"fork: is there already, and no git checkout, .* or remove it$"):
        tools.check_folder(folder, keeps=True)
    git(folder.parent, "init", "-q")
    with pytest.raises(tools.Mistake, match="is not a git checkout with files - git init, git add, git commit"):
        tools.tracked(folder.parent)


def test_a_folder_that_cannot_be_written_is_one_line(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of this name, and a full disk: no part of a fork is left."""
    (tmp_path / "file").touch()
    done = fork(ROOT, "--without", "gan", "--into", str(tmp_path / "file"), code=1)
    assert done.stderr == f"error: {tmp_path / 'file'}: Not a directory\n"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.py").touch()

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tools.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left"):
        tools.place_whole(tmp_path / "tree", tmp_path / "fork")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tree"]


def test_a_clone_of_any_settings_of_git_is_whole(template: Path, tmp_path: Path) -> None:
    """The files of a clone have LF, which bash needs; wheels are committed whatever the user's git ignores."""
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "-q", str(template), "clone")
    assert b"\r" not in (tmp_path / "clone/run").read_bytes() + (tmp_path / "clone/src/train.py").read_bytes()
    (tmp_path / "clone/vendor").mkdir()
    (tmp_path / "clone/vendor/samebits-0.3.0-py3-none-any.whl").touch()
    (tmp_path / "ignored").write_text("vendor/\n*.whl\n*.h5\n")
    git(tmp_path / "clone", "-c", f"core.excludesFile={tmp_path / 'ignored'}", "add", "-A")
    assert git(tmp_path / "clone", "diff", "--cached", "--name-only").startswith("vendor/samebits")
    assert git(tmp_path / "clone", "ls-files", "data/digits.h5")


def test_a_repository_that_the_environment_names_is_not_read(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git sets GIT_DIR in a hook, and `git rebase --exec`."""
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").touch()
        commit(tmp_path / name)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert tools.tracked(tmp_path / "own") == ["own.txt"]
    (tmp_path / "own/new.txt").touch()
    with pytest.raises(tools.Mistake, match=r"new\.txt not committed"):
        tools.check_folder(tmp_path / "own", keeps=False)


# arguments: when a signal arrives, the folder, the signal
INTERRUPTED = """
import signal, sys
sys.path.insert(0, "tools")
import fork
when, folder, number = sys.argv[1:]
before = getattr(fork, when)
def interrupted(*given, **named):
    signal.raise_signal(int(number))
    return before(*given, **named)
setattr(fork, when, interrupted)
fork.tidy = lambda tree: None
sys.argv[1:] = ["--without", "gan", "--into", folder]
sys.exit(fork.main())
"""


@pytest.mark.parametrize(("when", "number", "code"), [("tracked", 2, 130), ("tracked", 15, 143), ("place", 15, 0)])
def test_a_signal_stops_a_fork_before_it_changes_files(when: str, number: int, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, when, str(tmp_path / "fork"), str(number)]
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert (tmp_path / "fork/conf").exists() == (code == 0)
    assert not (tmp_path / "fork.partial").exists()


@pytest.mark.slow
def test_in_place_is_the_same(with_few_tests: Path, parts: list[str], tmp_path: Path) -> None:
    clone, beside = tmp_path / "clone", tmp_path / "beside"
    git(tmp_path, "clone", "-q", str(with_few_tests), "clone")
    (clone / "src/lab/__pycache__").mkdir()
    asked = ("zebrafish_tracking", "--title", "Our fish", "--vendor", "--without", *parts)
    (clone / "new.txt").touch()
    refused = fork(clone, *asked, code=2)
    assert refused.stderr.count("\n") == 1
    assert "new.txt not committed" in refused.stderr
    (clone / "new.txt").unlink()
    fork(clone, *asked, "--into", str(beside)), fork(clone, *asked)
    made = files(beside)
    assert files(clone) == made
    check_name(made)
    assert not (clone / "vendor").exists()
    assert files(clone / "packages") == files(with_few_tests / "packages")
    assert not (clone / "src/lab").exists()
    again = fork(clone, "other", code=2)
    assert again.stderr == "error: other: this fork has its name, zebrafish_tracking; there is no src/lab to rename\n"


@pytest.mark.parametrize("terms", ["MIT", "none"])
def test_licences(tools: Any, tmp_path: Path, terms: str) -> None:
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    tools.name_owner(tmp_path, 'My "own"', 'A "B" C', terms)
    assert (tmp_path / "README.md").read_text().startswith('# My "own"\n')
    project = (tmp_path / "pyproject.toml").read_text()
    assert 'description = "My \\"own\\""\n' in project
    assert 'authors = [{ name = "A \\"B\\" C" }]\n' in project
    assert ("license" in project, (tmp_path / "LICENSE").exists()) == (terms == "MIT", terms == "MIT")
    if terms == "MIT":
        assert '\nCopyright (c) A "B" C\n' in (tmp_path / "LICENSE").read_text()
    assert (ROOT / "packages/samebits/LICENSE").exists()  # the engine's stays


def test_the_wheel_and_the_library_need_what_the_project_needs() -> None:
    """Of a distribution that several need, the same versions; the project has each extra of theirs by its name."""
    texts = [(ROOT / name / "pyproject.toml").read_text() for name in (".", "packages/samebits", "packages/h5rows")]
    asked: dict[str, set[str]] = {}
    for text in texts:
        for name, versions in re.findall(r'"([A-Za-z0-9-]+)([<>=][^";]*)"', text):
            asked.setdefault(name, set()).add(versions)
    asked["torch"] -= {">=2.8"}  # h5rows takes any torch from then on
    assert {name: versions for name, versions in asked.items() if len(versions) > 1} == {}
    project, *libraries = (
        dict(re.findall(r"^(\w+) = (\[\".*\"\])", text.partition("[project.optional-dependencies]")[2], re.MULTILINE))
        for text in (text.partition("\n[tool.")[0] for text in texts)
    )
    for library, extras in zip(("samebits", "h5rows"), libraries):
        for extra in extras.keys() - {"torch", "test", "testing"}:
            assert f'"{library}[{extra}]"' in project[extra]


@pytest.mark.slow
@pytest.mark.parametrize(
    "without",
    sample_of(["all"], ["all", "search", "shakespeare container"]),
)
def test_the_commands_of_a_fork_s_readme_run(
    with_few_tests: Path, parts: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, without: str
) -> None:
    """What makes a file that a later command reads may have gone, and this command must have gone with it."""
    folder, bare = tmp_path / "fork", bare_python(tmp_path / "bare")
    left = parts if without == "all" else without.split()
    fork(with_few_tests, "small_one", "--without", *left, "--into", str(folder))
    readme = (folder / "README.md").read_text()
    typed_in = re.findall(r"^```(bash|python|yaml)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(typed_in) > 3
    with environment_in(with_fewer_digits(folder), tmp_path_factory.mktemp("door")):
        for kind, block in typed_in:
            if file := re.match(r"# ((?:src|conf)/\S+)\n", block):  # which the reader writes
                (folder / file[1]).write_text(block)
                continue
            (folder / "block.py").write_text(block)
            for command in ["./run python block.py"] if kind == "python" else block.splitlines():
                shell(command, folder, bare, **no_pictures(command))
    kept = {path.stem for path in (folder / "src").glob("*.py")}
    for name in {path.stem for path in (with_few_tests / "src").glob("*.py")} - kept:
        assert not re.search(rf"(run |^src/\*\.py.*)\b{name}\b", readme, re.MULTILINE), name


def typed(folder: Path, command: str, seconds: float = 120) -> str:
    """In a shell of the folder, without any network. pip takes what is installed."""
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_FIND_LINKS": "", "PYTHONPATH": ""}
    identity = {f"GIT_{who}_{key}": "me" for who in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    env = {**os.environ, **offline, **identity}
    done = called(["bash", "-c", command], seconds=seconds, cwd=folder, env=env, fresh=True)
    return done.stdout + done.stderr


def check_another_engine(folder: Path, template: Path, job: Path) -> None:
    """A run of the first engine; then a newer one, of the same version, is installed. --steps ends the second run."""
    newer = folder.parent / "newer"
    git(folder.parent, "clone", "-q", str(template), "newer")
    (newer / "packages/samebits/src/samebits/newer.py").touch()
    commit(newer)
    said = typed(folder, f"./run fork --update {newer}")
    assert "samebits 0.3.0: same version, different content\n" in said.replace(version_of(newer), "0.3.0")
    said = typed(folder, f"./run verify {job} --steps 2")
    assert f"{job.name}: 2 steps repeated, equal bit for bit" in said
    line = r"^code: .* libraries are installed: samebits [\d.]+: same version, different content"
    assert re.search(line, said, re.MULTILINE)


def version_of(template: Path) -> str:
    text = (template / "packages/samebits/src/samebits/__init__.py").read_text()
    return re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)[0]


@pytest.mark.slow
@pytest.mark.timeout(7200)  # with TESTS_ALL=1 all of its quick tests, which take minutes
@pytest.mark.parametrize("asked", sample_of(["all"], ["nothing", "all"]))
def test_a_clone_of_a_fork_needs_nothing_else(
    request: pytest.FixtureRequest, tools: Any, tmp_path: Path, asked: str
) -> None:
    """Its commands install the wheels, without a network; what the fork command says is typed, to the letter."""
    template, folder = request.getfixturevalue(sample_of("with_few_tests", "template")), tmp_path / "fork"
    without = [*tools.PARTS] if asked == "all" else []
    done = fork(template, "small_one", "--without", *without, "--into", str(folder))
    assert done.stderr == ""

    # an environment that sees what this one has, but for its editable installation
    installed = run(folder, "-m", "pip", "list", "--format=freeze")
    others = [line for line in installed.stdout.splitlines(keepends=True) if not line.startswith(OWN)]
    (folder / "constraints.txt").write_text("".join(others))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
    (own,) = (folder / ".venv").glob("lib/python*/site-packages")
    (own / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    *commands, train_it, test_it = re.findall(r"^  ((?:git|\./run) .*)$", done.stdout, re.M)
    assert (train_it, test_it) == ("./run train", "./run test")
    for command in commands:
        typed(folder, command)
    # first what installs all that the others need; what each of them would install: test_environment.py
    chosen = sample_of("tests/*/test_state.py", "")
    assert re.search(r"\d+ passed", typed(folder, f"{test_it} -n {sample_of(0, 2)} {chosen}", 1200))
    typed(folder, f"{train_it} -m {' '.join(SMALL)} trainer.max_steps=4 trainer.save_every=2 seed=1,2 sweep=two")
    for wheel in folder.glob("vendor/*.whl"):
        with zipfile.ZipFile(wheel) as held:
            assert [name for name in held.namelist() if held.read(name) != (own / name).read_bytes()] in (
                [], [next(name for name in held.namelist() if name.endswith("RECORD"))],  # pip adds its own files
            )  # fmt: skip
    # mypy reads all of torch, which takes longer than the rest of this test
    typed(folder, sample_of("SKIP=mypy ./run lint", "./run lint"), 300)
    job, _ = [file.parent for file in (folder / "outputs/default/sweeps/two").glob("seed-*/result.json")]
    assert (folder / "outputs/default/sweeps/two/report.html").exists()  # of files that are not Python
    check_another_engine(folder, template, job)


# -- the libraries ---------------------------------------------------------------------------------------------------

PROJECT = '[build-system]\nrequires = ["setuptools>=68"]\n[project]\nname = "{0}"\nversion = "{1}"\n'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A template of two small libraries, with the tags v1 and v2."""
    for version in ("1", "2"):
        for name in ("h5rows", "samebits"):
            folder = tmp_path / "template/packages" / name
            (folder / "src" / name).mkdir(parents=True, exist_ok=True)
            (folder / "pyproject.toml").write_text(PROJECT.format(name, version))
            (folder / "src" / name / "__init__.py").write_text(f'__version__ = "{version}"\n')
        git(commit(tmp_path / "template"), "tag", f"v{version}")
    return tmp_path / "template"


@pytest.fixture
def libraries(tools: Any) -> Any:
    return tools.libraries


def forked(template: Path, folder: Path, libraries: Any, choice: str) -> Path:
    """Of the template at v1: what there is of the libraries in a fork."""
    git(template, "checkout", "-q", "v1")
    shutil.copytree(template / "packages", folder / "packages")
    (folder / "Dockerfile").write_text("COPY --chown=me packages packages\nRUN x\n")
    (folder / "pyproject.toml").write_text(
        'dependencies = [\n  "samebits", # why\n  "h5rows",\n]\nx = ["samebits[x]"]\n'
    )
    libraries.check(choice)
    libraries.depend(folder, template, choice)
    git(template, "checkout", "-q", "v2")
    return folder


@pytest.mark.parametrize("choice", ["wheels", "copy", "address"])
def test_newer_libraries_are_one_command(small: Path, libraries: Any, tmp_path: Path, choice: str) -> None:
    address = choice == "address"
    folder = forked(small, tmp_path / "fork", libraries, f"git+{small.as_uri()}@v1" if address else choice)
    was = files(folder)
    fork_of_it = tmp_path / "other"
    fork_of_it.mkdir()
    (fork_of_it / "README.md").touch()
    commit(fork_of_it)
    assert (folder / "packages").exists() is (choice == "copy")
    copied = {"wheels": "vendor vendor", "copy": "packages packages"}.get(choice)
    assert (f"COPY --chown=me {copied}\n" if copied else "") + "RUN x\n" == (folder / "Dockerfile").read_text()
    for source, said in (
        (f"{small}@v3", "has no tag v3; it has v1, v2"),
        (f"{tmp_path}/none@v1", "git ls-remote failed: .*does not"),
        (f"{tmp_path}/none", "give one" if address else "git clone failed: .*does not"),
        (str(fork_of_it), "give one" if address else f"^{fork_of_it}: has no packages/ - give the template"),
    ):
        with pytest.raises(libraries.Mistake, match=said) as caught:
            libraries.update(folder, source)
        assert "\n" not in str(caught.value)
    if not address:
        (small / "packages/h5rows/new.py").touch()
        with pytest.raises(libraries.Mistake, match=r"packages/h5rows/new.py is not committed"):
            libraries.update(folder, str(small))
        (small / "packages/h5rows/new.py").unlink()
    assert files(folder) == was
    tags = [f"{name} {'v' * address}1 -> {'v' * address}2" for name in ("h5rows", "samebits")]
    assert sorted(libraries.update(folder, f"git+{small.as_uri()}@v2" if address else str(small))) == tags
    if choice == "wheels":
        assert [wheel.name.split("-")[1] for wheel in folder.glob("vendor/*")] == ["2", "2"]
    elif choice == "copy":
        assert files(folder / "packages") == files(small / "packages")
        (folder / "packages/h5rows/src/h5rows.egg-info").mkdir()  # written by pip
        (folder / "packages/h5rows/src/h5rows.egg-info/PKG-INFO").write_text("Version: 1")
    else:
        text = (folder / "pyproject.toml").read_text()
        assert f'"samebits @ git+{small.as_uri()}@v2#subdirectory=packages/samebits",\n' in text
        assert f'"h5rows @ git+{small.as_uri()}@v2#subdirectory=packages/h5rows",\n' in text
        assert 'x = ["samebits[x]"]' in text
    if not address:
        assert libraries.update(folder, f"{small}@v2") == ["h5rows 2: unchanged", "samebits 2: unchanged"]


@pytest.mark.parametrize("choice", ["wheel", "git+ssh://me@host/path", "https://host/path@v1"])
def test_where_libraries_cannot_come_from(libraries: Any, choice: str) -> None:
    with pytest.raises(libraries.Mistake, match=r"expected wheels, copy or git\+ADDRESS@TAG"):
        libraries.check(choice)


def test_wheels_of_what_is_not_committed_are_refused(small: Path, libraries: Any, tmp_path: Path) -> None:
    (small / "packages/h5rows/new.py").touch()
    with pytest.raises(libraries.Mistake, match=r"^packages/h5rows/new.py: is not committed"):
        libraries.depend(tmp_path / "fork", small, "wheels")


def test_the_template_is_not_updated(template: Path) -> None:
    assert fork(template, "--update", str(template), code=2).stderr.startswith("error: --update: this is the template")


# -- a later version -------------------------------------------------------------------------------------------------


def copier(folder: Path, *arguments: str) -> None:
    run(folder, "-m", "copier", *arguments, "--trust", "--defaults", "--vcs-ref", "HEAD")


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
def test_copier_keeps_only_the_chosen_parts(with_few_tests: Path, tmp_path: Path) -> None:
    pytest.importorskip("copier")
    answers = ("--data", "project_name=Fold it", "--data", "choose=only", "--data", "only_methods=[gan]")
    copier(tmp_path, "copy", *answers, str(with_few_tests), str(tmp_path / "mine"))
    fork(with_few_tests, "fold_it", "--title", "Fold it", "--only", "gan", "--into", str(tmp_path / "tool"))
    assert files(tmp_path / "mine") == files(tmp_path / "tool")


@pytest.mark.slow
def test_a_later_version_goes_into_an_edited_fork(with_few_tests: Path, tmp_path: Path) -> None:
    pytest.importorskip("copier")
    theirs, mine, tool = tmp_path / "theirs", tmp_path / "mine", tmp_path / "tool"
    git(tmp_path, "clone", "-q", str(with_few_tests), "theirs")
    answers = ("--data", "project_name=Fold it", "--data", "without_methods=[gan, vae]")
    copier(theirs, "copy", *answers, str(theirs), str(mine))
    asked = ("fold_it", "--title", "Fold it", "--without", "gan", "vae", "--into", str(tool))
    fork(theirs, *asked)
    assert files(mine) == files(tool)
    commit(mine)
    run(mine, "src/train.py", *SMALL, "trainer.max_steps=4", "hydra.run.dir=outputs/run")

    # the fork goes its way
    change(mine / "conf/optim/adamw.yaml", "lr: 1e-3", "lr: 2e-3 # ours")
    change(mine / "src/fold_it/models/mlp.py", "class MLP", "OURS = 1\n\n\nclass MLP")
    (mine / "src/fold_it/models/own.py").write_text("from fold_it.models.mlp import MLP\n\nOwn = MLP\n")
    (mine / "conf/callback/pictures.yaml").unlink()
    commit(mine)
    edited = files(mine)

    # and the template: one line that the fork has changed too
    change(theirs / "conf/optim/adamw.yaml", "lr: 1e-3", "lr: 3e-3")
    change(theirs / "packages/samebits/src/samebits/__init__.py", "__version__ =", "NEWER = True\n__version__ =")
    change(theirs / "src/lab/loop.py", '"""The training loop.', '"""The newer loop.')
    (theirs / "src/lab/models/newer.py").write_text("from lab.models.mlp import MLP\n\nNewer = MLP\n")
    (theirs / "src/lab/tasks/gan.py").write_text('"""Newer, too."""\n')
    (theirs / "conf/debug/nan.yaml").unlink()
    commit(theirs)

    copier(mine, "update")
    assert git(mine, "diff", "--name-only", "--diff-filter=U").splitlines() == ["conf/optim/adamw.yaml"]
    undone = Path(shutil.copytree(mine, tmp_path / "undone", ignore=shutil.ignore_patterns("outputs")))
    (undo,) = re.findall(r"To undo \w+ update[^`]*`(.*?)`", (undone / "docs/fork.md").read_text())
    called(["bash", "-c", undo], cwd=undone, fresh=True)
    assert (files(undone), git(undone, "status", "--porcelain")) == (edited, "")
    conflict = (mine / "conf/optim/adamw.yaml").read_text()
    both = re.compile(r"<<<<<<< .*\n(.*)\n(?:\|\|\|\|\|\|\| .*\n.*\n)?=======\n(.*)\n>>>>>>> .*\n")
    found = both.search(conflict)
    comment = re.search("lr: 1e-3(.*)", (tool / "conf/optim/adamw.yaml").read_text())[1]  # type: ignore[index]
    assert found is not None
    assert found.groups() == (f"lr: 2e-3 # ours{comment}", f"lr: 3e-3{comment}")
    (mine / "conf/optim/adamw.yaml").write_text(both.sub(r"\1\n", conflict))
    commit(mine)

    (wheel,) = mine.glob("vendor/samebits-*.whl")
    assert b"NEWER" in zipfile.ZipFile(wheel).read("samebits/__init__.py")
    merged = {"loop.py": "The newer loop", "models/newer.py": "fold_it.models", "models/mlp.py": "OURS"}
    for name, text in merged.items():
        assert text in (mine / "src/fold_it" / name).read_text()
    gone = ("src/lab", "src/fold_it/tasks/gan.py", "conf/callback/pictures.yaml", "conf/debug/nan.yaml")
    assert [name for name in gone if (mine / name).exists()] == []

    newer = "model._target_=fold_it.models.newer.Newer"
    run(mine, "src/train.py", "resume=outputs/run", "trainer.max_steps=8")
    run(mine, "src/train.py", *SMALL, newer, "trainer.max_steps=2", "hydra.run.dir=outputs/newer")
    assert [result(mine / "outputs" / name)["step"] for name in ("run", "newer")] == [8, 2]
