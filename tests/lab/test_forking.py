"""A fork: tools/fork.py and copier make the same, without a trace of what was left out, and a later version goes in."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, limit, result
from fork import copy_of_the_project

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ALL = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
SMALL = ("logger=none", "hardware=cpu", "model.hidden=[8]", "trainer.max_epochs=null", "trainer.eval_every=4")


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    sys.modules.pop("fork")  # tests/fork.py
    try:
        yield importlib.import_module("fork")
    finally:
        sys.path.remove(str(ROOT / "tools"))
        sys.modules.pop("fork")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*ALL, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(copy_of_the_project(tmp_path_factory.mktemp("template")))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit(120))


def fork(template: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(template, sys.executable, "tools/fork.py", *arguments)


def files(folder: Path) -> dict[str, bytes]:
    left = (".git", "__pycache__", ".copier-answers.yml", ".ruff_cache", "outputs")
    found = [path for path in folder.rglob("*") if path.is_file() and not set(left) & set(path.parts)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def engine(folder: Path) -> dict[str, bytes]:
    return {
        name: data for name, data in files(folder).items() if name.startswith(("src/engine/", "src/hydra_plugins/"))
    }


# -- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "is a keyword"), ("match", "is a keyword"), ("Mine", "expected a"), ("my-own", "expected a"),
        ("json", "Python's own library"), ("torch", "installed or required"), ("omegaconf", "installed or required"),
        ("engine", "already"), ("train", "already"), ("conf", "already"), ("conftest", "already"),
        ("lab", "the template's own"), ("model", "is a variable"), ("a" * 21, "more than 20"),
    ],
)  # fmt: skip
def test_names_that_would_clash_are_refused(tools: Any, name: str, reason: str) -> None:
    with pytest.raises(tools.Mistake, match=reason):
        tools.check_name(name, "lab")


def test_a_name_of_an_uninstalled_requirement_is_refused(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """copier runs with a Python of its own, where nothing of ours is installed."""
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    for name in ("torch", "numpy", "omegaconf", "hydra", "wandb", "optuna"):
        with pytest.raises(tools.Mistake, match="installed or required"):
            tools.check_name(name, "lab")
    tools.check_name("fold_it", "lab")


def test_copier_and_the_docs_name_every_part(tools: Any) -> None:
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    for kind in ("method", "experiment", "extra"):
        named = [name for name, part in tools.PARTS.items() if part.kind == kind]
        assert questions[f"without_{kind}s"]["choices"] == named
    rows = [f"| `{name}` | {part.about} |" for name, part in tools.PARTS.items()]
    assert "\n".join(rows) in (ROOT / "docs/fork.md").read_text()


# -- what is made ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tools: Any) -> list[str]:
    """All but the engine, whose folder other tests compare."""
    return [name for name in tools.PARTS if name != "engine"]


@pytest.fixture(scope="module")
def least(template: Path, parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fork without any part, of a long name that sorts behind all others."""
    folder = tmp_path_factory.mktemp("least")
    done = fork(template, "zebrafish_tracking", "--title", "Our fish", "--without", *parts, "--into", str(folder))
    assert (done.returncode, done.stderr) == (0, "")  # so all of parts.py was found
    return folder


def test_a_fork_has_no_trace_of_what_was_left_out(least: Path, template: Path, tools: Any, parts: list[str]) -> None:
    """No name of a deleted file, or of a part, in any text but prose; names that other files have too may stay."""
    made, before = files(least), {name.replace("/lab/", "/zebrafish_tracking/") for name in files(template)}
    assert made.keys() < before
    stay = {Path(name).stem for name in made}
    folders = (
        "conf/model/",
        "conf/task/",
        "conf/experiment/",
        "conf/callback/",
        "src/zebrafish_tracking/",
        "notebooks/",
    )
    deleted = {Path(name).stem for name in before - made.keys() if name.startswith(folders)}
    gone = (deleted | {"benchmarks", "notebooks"}) - stay
    assert {"byol", "autoencoder", "cifar10_fast", "sample_text", "tour", "benchmarks"} < gone
    named = re.compile(rf"(?<![\w-])({'|'.join(gone)})(?![\w-])")
    kept = ("tools/", "docs/fork.md", "CHANGELOG.md", *tools.ENGINE)  # say what there is to leave out; are untouched
    for name, data in made.items():
        lines = [] if name.startswith(kept) or b"\0" in data else data.decode(errors="ignore").splitlines()
        lines = [line for line in lines if not line.lstrip().startswith(('"""', "#", 'r"', "for name in re."))]
        assert [line for line in lines if named.search(line)] == [], name
        if name.endswith(".md") and not name.startswith(kept):
            assert not re.search(r"src/(h5|report|sync)\.py|run (h5|report|sync)\b|sweeper=optuna", data.decode()), name


def imported(tree: Path, tools: Any, folder: str, asks: Sequence[tuple[str, str]] = ()) -> Iterator[tuple[Path, Any]]:
    """Each file below `folder`, with {name: what it holds} of the project's modules that it imports whole. All that it
    imports of the project is there, but for `asks`: (file, module) where the file asks before."""
    prune = sys.modules[tools.prune_tests.__module__]
    prune.names_of.cache_clear()
    for path in (tree / folder).rglob("*.py"):
        modules = {}
        for module, wanted, name in prune.imports(path.read_text()):
            held = prune.names_of(tree, module)
            if held is None or (path.name, module) in asks:
                continue
            assert wanted in held if wanted else held, f"{path}: {module} {wanted}"
            modules |= {} if wanted or "." in name else {name: held}
        yield path, modules


def test_nothing_in_src_imports_what_was_left_out(least: Path, tools: Any) -> None:
    assert list(imported(least, tools, "src", asks=[("drive.py", "engine.sweeps.report")]))


def test_what_the_tests_of_a_fork_use_is_there(least: Path, tools: Any) -> None:
    for path, modules in imported(least, tools, "tests"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                assert node.attr in modules[node.value.id], f"{path}:{node.lineno}: {node.value.id}.{node.attr}"
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                assert not re.search(r"\b(h5|report|sync)\.py", node.value), f"{path}:{node.lineno}: {node.value}"


def test_a_fork_has_the_engine_and_no_old_name(least: Path, template: Path) -> None:
    theirs, ours = engine(least), engine(template)
    pages = {f"src/engine/{room}/__init__.py" for room in ("packing", "sweeps")}  # without what was left out
    assert {name for name in theirs if theirs[name] != ours[name]} == pages
    assert len(theirs) > 100
    for name, data in files(least).items():
        if name.startswith(("conf/", "src/", "tests/")) and name not in theirs and not name.startswith("tests/runs/"):
            text = data.decode(errors="ignore")
            old = [line for line in text.splitlines() if re.search(r"(?<![\w-])lab(?![\w-])", line)]
            assert all('    "lab.' in line for line in old), (name, old)  # groups.MOVED


def test_a_fork_passes_its_hooks(least: Path) -> None:
    for command in (["ruff", "check", "-q", "."], ["ruff", "format", "--check", "-q", "."], ["yamllint", "-s", "."]):
        done = run(least, sys.executable, "-m", *command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_of_a_fork_is_as_if_written_there(least: Path) -> None:
    """fork.py takes out what is gone without torch."""
    done = run(least, sys.executable, "tools/schema.py", "--check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_in_place_is_the_same(least: Path, template: Path, parts: list[str], tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(template), "clone")
    (clone / "src/lab/__pycache__").mkdir()
    asked = ("zebrafish_tracking", "--title", "Our fish", "--without", *parts)
    (clone / "new.txt").touch()
    refused = fork(clone, *asked)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "new.txt not committed" in refused.stderr
    (clone / "new.txt").unlink()
    assert fork(clone, *asked).returncode == 0
    assert files(clone) == files(least)
    assert not (clone / "src/lab").exists()
    again = fork(clone, "other")
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
    assert (ROOT / "src/engine/LICENSE").exists()  # the engine's stays


def train(folder: Path, *overrides: str) -> str:
    done = run(folder, sys.executable, "src/train.py", *overrides)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_fork_trains_and_reads_what_the_template_wrote(least: Path) -> None:
    old = shutil.copytree(ROOT / "tests/runs/whole-finished", least / "outputs/old")
    done = run(least, sys.executable, "src/evaluate.py", str(old), "--split", "val")
    assert done.returncode == 0, done.stderr
    train(least, "-m", *SMALL, "trainer.max_steps=2", "seed=1,2", "sweep=two")
    assert len(list((least / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    for asked in (("tests/engine/test_wall.py",), ("--collect-only", "-m", "", "tests")):
        done = run(least, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked)
        assert done.returncode == 0, done.stdout[-3000:]


def test_the_wheel_needs_what_the_project_needs() -> None:
    """But for extras, and the comments."""
    needs = [
        re.findall(
            r'"([a-z0-9-]+[<>=][^"]*)"', re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1]
        )  # type: ignore[index]
        for text in ((ROOT / name / "pyproject.toml").read_text() for name in (".", "tools/engine"))
    ]
    assert needs[0] == needs[1]
    assert len(needs[0]) > 5


@pytest.mark.slow
def test_a_fork_trains_with_the_wheel_of_the_engine(template: Path, tmp_path: Path) -> None:
    clone, small, site = tmp_path / "clone", tmp_path / "small", tmp_path / "site-packages"
    git(tmp_path, "clone", "-q", str(template), "clone")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    build = run(clone, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "./tools/engine")
    assert build.returncode == 0, build.stderr
    assert git(clone, "status", "--porcelain") == ""
    (wheel,) = tmp_path.glob("lab_engine-*.whl")
    assert run(tmp_path, *pip, "install", "--no-deps", "--target", str(site), str(wheel)).returncode == 0
    installed = {f"src/{path}": data for path, data in files(site).items() if "dist-info" not in path}
    assert installed == engine(template)

    assert fork(template, "small_one", "--without", "engine", "--into", str(small)).stderr == ""
    assert not (small / "src/engine").exists()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(small / "src"), str(site)])}
    asked = (*SMALL, "trainer.max_steps=2", "-m", "seed=1,2", "sweep=two")
    command = [sys.executable, "src/train.py", *asked]
    done = subprocess.run(command, cwd=small, env=environment, capture_output=True, text=True, timeout=limit(120))
    assert done.returncode == 0, done.stderr
    assert len(list((small / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    assert (small / "outputs/default/sweeps/two/report.html").exists()  # of files that are not Python


# -- a later version -------------------------------------------------------------------------------------------------


def copier(folder: Path, *arguments: str) -> None:
    done = run(folder, sys.executable, "-m", "copier", *arguments, "--trust", "--defaults", "--vcs-ref", "HEAD")
    assert done.returncode == 0, done.stderr


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
def test_a_later_version_goes_into_an_edited_fork(template: Path, tmp_path: Path) -> None:
    pytest.importorskip("copier")
    theirs, mine, tool = tmp_path / "theirs", tmp_path / "mine", tmp_path / "tool"
    git(tmp_path, "clone", "-q", str(template), "theirs")
    answers = ("--data", "project_name=Fold it", "--data", "without_methods=[gan, vae]")
    copier(tmp_path, "copy", *answers, str(theirs), str(mine))
    asked = ("fold_it", "--title", "Fold it", "--without", "gan", "vae", "--into", str(tool))
    assert fork(template, *asked).returncode == 0
    assert files(mine) == files(tool)
    commit(mine)
    train(mine, *SMALL, "trainer.max_steps=4", "hydra.run.dir=outputs/run")

    # the fork goes its way
    change(mine / "conf/optim/adamw.yaml", "lr: 1e-3", "lr: 2e-3 # ours")
    change(mine / "src/fold_it/models/mlp.py", "class MLP", "OURS = 1\n\n\nclass MLP")
    (mine / "src/fold_it/models/own.py").write_text("from fold_it.models.mlp import MLP\n\nOwn = MLP\n")
    (mine / "conf/callback/pictures.yaml").unlink()
    commit(mine)

    # and the template: one line that the fork has changed too
    change(theirs / "conf/optim/adamw.yaml", "lr: 1e-3", "lr: 3e-3")
    change(theirs / "src/engine/__init__.py", "__version__ =", "NEWER = True\n__version__ =")
    change(theirs / "src/lab/loop.py", '"""The training loop.', '"""The newer loop.')
    (theirs / "src/lab/models/newer.py").write_text("from lab.models.mlp import MLP\n\nNewer = MLP\n")
    (theirs / "src/lab/tasks/gan.py").write_text('"""Newer, too."""\n')
    (theirs / "conf/debug/nan.yaml").unlink()
    commit(theirs)

    copier(mine, "update")
    assert git(mine, "diff", "--name-only", "--diff-filter=U").splitlines() == ["conf/optim/adamw.yaml"]
    conflict = (mine / "conf/optim/adamw.yaml").read_text()
    both = re.compile(r"<<<<<<< .*\n(.*)\n(?:\|\|\|\|\|\|\| .*\n.*\n)?=======\n(.*)\n>>>>>>> .*\n")
    found = both.search(conflict)
    assert found is not None
    assert found.groups() == ("lr: 2e-3 # ours", "lr: 3e-3")
    (mine / "conf/optim/adamw.yaml").write_text(both.sub(r"\1\n", conflict))
    commit(mine)

    assert engine(mine) == engine(theirs)
    assert b"NEWER" in files(mine)["src/engine/__init__.py"]
    for name, text in {
        "loop.py": "The newer loop",
        "models/newer.py": "fold_it.models",
        "models/mlp.py": "OURS",
    }.items():
        assert text in (mine / "src/fold_it" / name).read_text()
    gone = ("src/lab", "src/fold_it/tasks/gan.py", "conf/callback/pictures.yaml", "conf/debug/nan.yaml")
    assert [name for name in gone if (mine / name).exists()] == []

    train(mine, "resume=outputs/run", "trainer.max_steps=8")
    assert result(mine / "outputs/run")["step"] == 8
    said = train(
        mine, "-m", *SMALL, "trainer.max_steps=2", "model._target_=fold_it.models.newer.Newer", "seed=1,2", "sweep=two"
    )
    assert len(list((mine / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2, said
