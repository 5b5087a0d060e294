"""A fork: tools/fork.py and copier make the same, without a trace of what was left out, and a later version goes in."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, limit, result, sample_of
from fork import copy_of_the_project
from fork import run_python as run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ALL = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
SMALL = ("logger=none", "hardware=cpu", "model.hidden=[8]", "trainer.max_epochs=null", "trainer.eval_every=4")


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    of_tests = sys.modules.pop("fork", None)  # tests/fork.py
    try:
        yield importlib.import_module("fork")
    finally:
        sys.path.remove(str(ROOT / "tools"))
        del sys.modules["fork"]
        if of_tests:
            sys.modules["fork"] = of_tests


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


@pytest.fixture(scope="module")
def with_few_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template, forked in a second: most of the time is for its tests."""
    folder = copy_of_the_project(tmp_path_factory.mktemp("template"))
    for path in (folder / "tests").glob("*/**/test_*.py"):
        if not path.name.startswith("test_task_"):
            path.unlink()
    return commit(folder)


def fork(template: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(template, "tools/fork.py", *arguments)


def files(folder: Path) -> dict[str, bytes]:
    left = (".git", "__pycache__", ".copier-answers.yml", ".ruff_cache", "outputs")
    found = [path for path in folder.rglob("*") if path.is_file() and not set(left) & set(path.parts)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def engine(folder: Path, inside: str = "src") -> dict[str, bytes]:
    found = files(folder / inside)
    ours = ("engine/", "multirun/", "h5rows/", "hydra_plugins/")
    return {f"src/{name}": data for name, data in found.items() if name.startswith(ours)}


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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def prune(tools: Any) -> Any:
    return sys.modules[tools.prune_tests.__module__]


def check_imports(tree: Path, prune: Any) -> None:
    """All that src/ imports of the project is there, in functions too."""
    asks = [("drive.py", "multirun.report")]  # whether it is there
    own = {path.stem for path in (tree / "src").iterdir()}
    prune.names_of.cache_clear()
    for path in (tree / "src").rglob("*.py"):
        for module, wanted, _ in prune.imports(path.read_text()):
            if module.partition(".")[0] in own and (path.name, module) not in asks:
                held = prune.names_of(tree, module)
                assert held, f"{path}: {module}"
                assert not wanted or wanted in held, f"{path}: {module} {wanted}"


@pytest.mark.slow
def test_nothing_in_src_imports_what_was_left_out(least: Path, prune: Any) -> None:
    check_imports(least, prune)


USES = """
from conftest import start
import engine.parallel.balance as balance, helper, lab.loop as loop, pytest
from engine.world import World
from lab import tasks, state
from lab.loop import fit
class Own: pass
"""
TESTS_OF = {  # of what stays, or never was; of what goes
    "kept": [
        "def test(): World", "def test(): balance.anything.more", "def test(): fit", "def test(): loop.fit.more",
        "def test(): helper.Kept", "def test(start): pass", "class TestOwn(Own): pass", "def test(): lab.never.was",
        "def test(): tasks.kept.run", "def test(monkeypatch): monkeypatch.setattr(loop, 'fit', 1)",
        "def test(): helper.state.load",
    ],
    "gone": [
        "def test(): from lab.gone import x", "def test(): state.load", "def test(): loop.descend",
        "@pytest.mark.parametrize('x', [loop.descend])\ndef test(x): pass", "class TestOwn(helper.Gone): pass",
        "def test(): helper.uses_it()", "def test(resume): pass", "def test(): tasks.gan.run",
        "@pytest.mark.usefixtures('resume')\ndef test(): pass", "def test(): import lab.state",
        "def test(monkeypatch): monkeypatch.setattr(loop, 'descend', 1)",
        "class Test:\n    def test_it(self): tasks.gan",
    ],
}  # fmt: skip


def test_tests_of_what_has_gone_go_and_no_others(prune: Any, tmp_path: Path) -> None:
    files = {
        "src/engine/world/__init__.py": "World = 1",
        "src/engine/parallel/balance.py": "anything = 1",
        "src/lab/__init__.py": "",
        "src/lab/loop.py": "def fit(): pass\ndef descend(): pass",
        "src/lab/state.py": "def load(): pass",
        "src/lab/tasks/__init__.py": "",
        "src/lab/tasks/gan.py": "def run(): pass",
        "src/lab/tasks/kept.py": "def run(): pass",
        "src/lab/gone.py": "x = 1",
        "tests/conftest.py": "from lab.gone import x\ndef start(): pass\ndef resume(): x",
        "tests/helper.py": "from lab import state\nclass Kept: pass\nclass Gone(state.load): pass\n"
        "def uses_it(): Gone\nclass state: load = 1",
        "tests/of_gone.py": "import deep",
        "tests/deep.py": "one = 1",
        "tests/script.py": "print(1)",
        "tests/a_user_s.py": "one = 1",
        "tests/lab/test_gone_too.py": "import of_gone\nimport lab.gone\ndef test(): of_gone.deep, lab.gone.x",
        "tests/lab/test_script.py": "def test(): start('tests/script.py')",
    }
    for what, tests in TESTS_OF.items():
        files |= {f"tests/lab/test_{what}_{i}.py": f"{USES}\n{test}" for i, test in enumerate(tests)}
    for name, text in files.items():
        for tree in ("before", "after"):
            (tmp_path / tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / tree / name).write_text(text)
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.rmtree(after / "src/engine")  # a wheel has it
    for name in ("lab/gone.py", "lab/state.py", "lab/tasks/gan.py"):
        (after / "src" / name).unlink()
    (after / "src/lab/loop.py").write_text("def fit(): pass")
    prune.prune_tests(after, before)
    left = {path.relative_to(after / "tests").as_posix() for path in (after / "tests").rglob("*.py")}
    kept = {f"lab/test_kept_{i}.py" for i, _ in enumerate(TESTS_OF["kept"])}
    assert left == {"conftest.py", "helper.py", "script.py", "a_user_s.py", "lab/test_script.py", *kept}
    for name in kept:
        assert (after / "tests" / name).read_text() == files[f"tests/{name}"]
    assert "Gone" not in (after / "tests/helper.py").read_text()


@pytest.mark.slow
def test_no_test_of_a_fork_names_a_command_that_was_left_out(least: Path) -> None:
    for path in (least / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text())
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                assert not re.search(r"\b(h5|report|sync)\.py", node.value), f"{path}:{node.lineno}: {node.value}"


@pytest.mark.slow
def test_a_fork_has_the_engine_and_no_old_name(least: Path, template: Path) -> None:
    theirs, ours = engine(least), engine(template)
    pages = {"src/h5rows/__init__.py", "src/multirun/__init__.py"}  # without what was left out
    assert {name for name in theirs if theirs[name] != ours[name]} == pages
    assert len(theirs) > 100
    for name, data in files(least).items():
        if name.startswith(("conf/", "src/", "tests/")) and name not in theirs and not name.startswith("tests/runs/"):
            text = data.decode(errors="ignore")
            old = [line for line in text.splitlines() if re.search(r"(?<![\w-])lab(?![\w-])", line)]
            assert all('    "lab.' in line for line in old), (name, old)  # PROJECT.moved


@pytest.mark.slow
def test_a_fork_passes_its_hooks(least: Path) -> None:
    for command in (["ruff", "check", "-q", "."], ["ruff", "format", "--check", "-q", "."], ["yamllint", "-s", "."]):
        done = run(least, "-m", *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_schema_of_a_fork_is_as_if_written_there(least: Path) -> None:
    """fork.py takes out what is gone without torch."""
    done = run(least, "tools/schema.py", "--check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
def test_in_place_is_the_same(with_few_tests: Path, parts: list[str], tmp_path: Path) -> None:
    clone, beside = tmp_path / "clone", tmp_path / "beside"
    git(tmp_path, "clone", "-q", str(with_few_tests), "clone")
    (clone / "src/lab/__pycache__").mkdir()
    asked = ("zebrafish_tracking", "--title", "Our fish", "--without", *parts)
    (clone / "new.txt").touch()
    refused = fork(clone, *asked)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "new.txt not committed" in refused.stderr
    (clone / "new.txt").unlink()
    assert fork(clone, *asked, "--into", str(beside)).returncode == fork(clone, *asked).returncode == 0
    assert files(clone) == files(beside)
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
    done = run(folder, "src/train.py", *overrides)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_fork_trains_and_reads_what_the_template_wrote(least: Path) -> None:
    old = shutil.copytree(ROOT / "tests/runs/whole-finished", least / "outputs/old")
    done = run(least, "src/evaluate.py", str(old), "--split", "val")
    assert done.returncode == 0, done.stderr
    train(least, "-m", *SMALL, "trainer.max_steps=2", "seed=1,2", "sweep=two")
    assert len(list((least / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    done = run(least, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/engine/test_wall.py")
    assert done.returncode == 0, done.stdout[-3000:]
    check_collects(least, "zebrafish_tracking")


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


def test_the_extras_of_the_library_are_the_project_s() -> None:
    project, library = (
        dict(re.findall(r"^(\w+) = (\[\".*\"\])", (ROOT / name / "pyproject.toml").read_text(), re.MULTILINE))
        for name in (".", "tools/h5rows")
    )
    for name in ("codecs", "images", "lmdb", "zarr", "n5", "tables", "tfrecord", "remote"):
        assert library[name] == project[name]


# pytest collects, then all modules of the package are imported
COLLECT = """
import importlib, pkgutil, sys
import pytest
status = pytest.main(["-q", "--collect-only", "-m", "", "-p", "no:cacheprovider", "--assert=plain", "tests"])
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    importlib.import_module(module.name)
sys.exit(status)
"""


def check_collects(folder: Path, package: str) -> None:
    done = run(folder, "-c", COLLECT, package)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def forks_of_pairs(tools: Any, parts: list[str]) -> list[list[str]]:
    """What to leave out: for each two parts a fork without the first that has the second: some 8 for 31 parts."""
    codes = list(itertools.combinations(range(7), 3))  # 35, of which none holds another
    assert len(parts) <= len(codes), "take combinations of more"
    forks = [tools.chosen([part for part, code in zip(parts, codes) if i in code]) for i in range(7)]
    beside = {kept: [part for part in parts if kept not in tools.chosen([part])] for kept in parts}
    for kept, others in beside.items():  # what others take with them is there too seldom
        if {*others} - {part for fork in forks if kept not in fork for part in fork}:
            forks.append(others)
    return forks


@pytest.mark.slow
@pytest.mark.timeout(7200)  # each of 7 forks takes some seconds where nothing else runs
def test_without_some_parts_all_is_collected_and_imported(
    template: Path, tools: Any, prune: Any, parts: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "fork"
    for without in forks_of_pairs(tools, parts)[:: sample_of(8, 1)]:
        assert fork(template, "--without", *without, "--into", str(folder)).stderr == ""
        check_imports(folder, prune)
        check_collects(folder, "lab")
        shutil.rmtree(folder)


def count_tests(folder: Path) -> int:
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return len([node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")])


def typed(folder: Path, command: str, seconds: float = 120) -> str:
    """In a shell of the folder, without any network. pip takes what is installed."""
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_FIND_LINKS": "", "PYTHONPATH": ""}
    identity = {f"GIT_{who}_{key}": "me" for who in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=limit(seconds),
        env={**os.environ, **offline, **identity},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout + done.stderr


def changed_tests(template: Path, fork: Path) -> list[str]:
    """The files of its tests that are not word for word the template's, but for the package's name."""
    before = {path: text.replace(b"lab", b"small_one") for path, text in files(template / "tests").items()}
    tests = {path: text for path, text in files(fork / "tests").items() if "/test_" in path}
    names = [f"tests/{path}" for path, text in tests.items() if before.get(path) != text]
    assert len(names) > 5
    return names


@pytest.mark.slow
@pytest.mark.timeout(7200)  # with TESTS_ALL=1 all of its quick tests, which take minutes
@pytest.mark.parametrize("asked", ["engine", "all"])
def test_the_tests_of_a_small_fork_pass(template: Path, tools: Any, tmp_path: Path, asked: str) -> None:
    """The two outer shapes; the files of tests that are others than the template's. What the command says is typed, to
    the letter."""
    without = tools.PARTS if asked == "all" else [asked]
    done = fork(template, "small_one", "--without", *without, "--into", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    kept, number = map(int, re.findall(r"^tests: (\d+) of (\d+) functions are kept, gone are:$", done.stdout, re.M)[0])
    assert (kept, number) == (count_tests(tmp_path / "tests"), count_tests(template / "tests"))
    assert kept > 0.7 * count_tests(template / "tests/lab")
    assert "\n  tests/engine/: " in done.stdout

    # without a network: an environment that sees what this one has, but for its editable installation
    installed = run(tmp_path, "-m", "pip", "list", "--format=freeze")
    (tmp_path / "constraints.txt").write_text(installed.stdout)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")], check=True)
    (own,) = (tmp_path / ".venv").glob("lib/python*/site-packages")
    (own / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    *commands, train_it, test_it = re.findall(r"^  ((?:git|\./run) .*)$", done.stdout, re.M)
    assert (train_it, test_it) == ("./run train", "./run test")
    for command in commands:
        typed(tmp_path, command)
    assert engine(own, ".") == engine(template)
    typed(tmp_path, f"{train_it} -m {' '.join(SMALL)} trainer.max_steps=2 seed=1,2 sweep=two")
    assert len(list((tmp_path / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    assert (tmp_path / "outputs/default/sweeps/two/report.html").exists()  # of files that are not Python
    names = sorted(changed_tests(template, tmp_path))[sample_of(3, 0) :: sample_of(24, 1)]
    assert len(names) > 1
    assert re.search(r"\d+ passed", typed(tmp_path, f"{test_it} -n {sample_of(0, 2)} {' '.join(names)}", 1200))


# -- a later version -------------------------------------------------------------------------------------------------


def copier(folder: Path, *arguments: str) -> None:
    done = run(folder, "-m", "copier", *arguments, "--trust", "--defaults", "--vcs-ref", "HEAD")
    assert done.returncode == 0, done.stderr


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
def test_a_later_version_goes_into_an_edited_fork(with_few_tests: Path, tmp_path: Path) -> None:
    pytest.importorskip("copier")
    theirs, mine, tool = tmp_path / "theirs", tmp_path / "mine", tmp_path / "tool"
    git(tmp_path, "clone", "-q", str(with_few_tests), "theirs")
    answers = ("--data", "project_name=Fold it", "--data", "without_methods=[gan, vae]")
    copier(theirs, "copy", *answers, str(theirs), str(mine))
    asked = ("fold_it", "--title", "Fold it", "--without", "gan", "vae", "--into", str(tool))
    assert fork(theirs, *asked).returncode == 0
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
