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
from common import ROOT
from fork import copy_of_the_project, with_fewer_digits
from fork import run_python as run
from shell import bare_python, environment_in, shell

from samebits.testing import result
from samebits.testing.processes import called, sample_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
ENGINE = "packages/"
LIBRARIES = ("h5rows", "samebits", "hydra_plugins")
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
        if not path.name.startswith("test_task_"):
            path.unlink()
    return commit(folder)


def fork(template: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run(template, "tools/fork.py", *arguments, code=code)


def files(folder: Path) -> dict[str, bytes]:
    left = (".git", "__pycache__", ".copier-answers.yml", ".ruff_cache", "outputs")
    found = [path for path in folder.rglob("*") if path.is_file() and not set(left) & set(path.parts)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def engine(folder: Path) -> dict[str, bytes]:
    """{module's file: bytes} of the libraries, of a project or where they are installed."""
    sources = [*folder.glob("packages/*/src")] or [folder]
    found = {name: data for source in sources for name, data in files(source).items()}
    return {name: data for name, data in found.items() if name.split("/")[0] in LIBRARIES}


# -- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "is a keyword"), ("match", "is a keyword"), ("Mine", "expected a"), ("my-own", "expected a"),
        ("json", "Python's own library"), ("torch", "installed or required"), ("omegaconf", "installed or required"),
        ("samebits", "installed or required"), ("packages", "already"), ("train", "already"), ("conf", "already"),
        ("conftest", "already"),
        ("lab", "the template's own"), ("model", "is a variable"), ("a" * 21, "more than 20"),
    ],
)  # fmt: skip
def test_names_that_would_clash_are_refused(tools: Any, name: str, reason: str) -> None:
    with pytest.raises(tools.Mistake, match=reason):
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
        assert questions[f"without_{kind}s"]["choices"] == named
    rows = [f"| `{name}` | {part.about} |" for name, part in tools.PARTS.items()]
    assert "\n".join(rows) in (ROOT / "docs/fork.md").read_text()


# -- what is made ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tools: Any) -> list[str]:
    """All but the engine, whose folder other tests compare."""
    return [name for name in tools.PARTS if name != "engine"]


@pytest.fixture(scope="module")
def prune(tools: Any) -> Any:
    return sys.modules[tools.prune_tests.__module__]


def check_imports(tree: Path, prune: Any) -> None:
    """All that src/ imports of the project is there, in functions too."""
    asks = [("drive.py", "samebits.sweeps.report")]  # whether it is there
    sources = [tree / "src", *tree.glob("packages/*/src")]
    own = {path.stem for source in sources for path in source.iterdir()}
    prune.names_of.cache_clear()
    prune.home.cache_clear()
    for path in (path for source in sources for path in source.rglob("*.py")):
        for module, wanted, _ in prune.imports(path.read_text()):
            if module.partition(".")[0] in own and (path.name, module) not in asks:
                held = prune.names_of(tree, module)
                assert held, f"{path}: {module}"
                assert not wanted or wanted in held, f"{path}: {module} {wanted}"


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fork_without_any_part(template: Path, parts: list[str], tools: Any, prune: Any, tmp_path: Path) -> None:
    """Of a long name that sorts behind all others: it has no trace of what was left out, and works."""
    done = fork(template, "zebrafish_tracking", "--title", "Our fish", "--without", *parts, "--into", str(tmp_path))
    assert done.stderr == ""  # so all of parts.py was found
    made, before = files(tmp_path), files(template)
    check_engine_and_name(made, before)
    check_trace(made, {name.replace("/lab/", "/zebrafish_tracking/") for name in before}, tools)
    check_imports(tmp_path, prune)
    for command in (["ruff", "check", "-q", "."], ["ruff", "format", "--check", "-q", "."], ["yamllint", "-s", "."]):
        run(tmp_path, "-m", *command)
    assert run(tmp_path, "tools/schema.py", "--check").stdout == ""  # fork.py takes out what is gone without torch
    old = shutil.copytree(ROOT / "checks/runs/whole-finished", tmp_path / "outputs/old")
    run(tmp_path, "src/evaluate.py", str(old), "--split", "val")
    run(tmp_path, "src/train.py", "-m", *SMALL, "trainer.max_steps=2", "seed=1,2", "sweep=two")
    assert len(list((tmp_path / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "checks/samebits/test_wall.py")
    run(tmp_path, "-c", COLLECT, "zebrafish_tracking")


def check_engine_and_name(made: dict[str, bytes], before: dict[str, bytes]) -> None:
    engine = {name for name in made if name.startswith(ENGINE)}
    pages = {
        "packages/h5rows/src/h5rows/__init__.py",
        "packages/h5rows/src/h5rows/engines.py",
        "packages/samebits/src/samebits/sweeps/__init__.py",
    }  # without what was left out
    assert {name for name in engine if made[name] != before[name]} == pages
    assert len(engine) > 100
    for name in made.keys() - engine:
        if name.startswith(("conf/", "src/", "tests/")) and not name.startswith("checks/runs/"):
            lines = made[name].decode(errors="ignore").splitlines()
            old = [line for line in lines if re.search(r"(?<![\w-])lab(?![\w-])", line)]
            assert all('    "lab.' in line for line in old), (name, old)  # PROJECT.moved


def check_trace(made: dict[str, bytes], before: set[str], tools: Any) -> None:
    """No name of a deleted file, or of a part, in any text but prose; names that other files have too may stay."""
    assert made.keys() < before
    folders = (
        "conf/model/", "conf/task/", "conf/experiment/", "conf/callback/", "src/zebrafish_tracking/", "notebooks/",
    )  # fmt: skip
    deleted = {Path(name).stem for name in before - made.keys() if name.startswith(folders)}
    gone = (deleted | {"benchmarks", "notebooks"}) - {Path(name).stem for name in made}
    assert {"byol", "autoencoder", "cifar10_fast", "sample_text", "tour", "benchmarks"} < gone
    named = re.compile(rf"(?<![\w-])({'|'.join(gone)})(?![\w-])")
    kept = ("tools/", "docs/fork.md", "CHANGELOG.md", tools.ENGINE)  # say what there is to leave out; are untouched
    for name, data in made.items():
        if name.startswith(kept) or b"\0" in data:
            continue
        text = data.decode(errors="ignore")
        lines = [
            line for line in text.splitlines() if not line.lstrip().startswith(('"""', "#", 'r"', "for name in re."))
        ]
        assert [line for line in lines if named.search(line)] == [], name
        if name.endswith(".md"):
            assert not re.search(r"src/(h5|report|sync)\.py|run (h5|report|sync)\b|sweeper=optuna", text), name
        if name.startswith("tests/") and name.endswith(".py"):
            assert [said for said in strings(text) if re.search(r"\b(h5|report|sync)\.py", said)] == [], name


def strings(text: str) -> list[str]:
    """But for docstrings."""
    nodes = [*ast.walk(ast.parse(text))]
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


USES = """

import samebits.parallel.balance as balance, helper, lab.loop as loop, pytest
from samebits.world import World
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
        "packages/samebits/src/samebits/world/__init__.py": "World = 1",
        "packages/samebits/src/samebits/parallel/balance.py": "anything = 1",
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
    shutil.rmtree(after / "packages/samebits/src/samebits")  # a wheel has it
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


@pytest.mark.slow
def test_in_place_is_the_same(with_few_tests: Path, parts: list[str], tmp_path: Path) -> None:
    clone, beside = tmp_path / "clone", tmp_path / "beside"
    git(tmp_path, "clone", "-q", str(with_few_tests), "clone")
    (clone / "src/lab/__pycache__").mkdir()
    asked = ("zebrafish_tracking", "--title", "Our fish", "--without", *parts)
    (clone / "new.txt").touch()
    refused = fork(clone, *asked, code=2)
    assert refused.stderr.count("\n") == 1
    assert "new.txt not committed" in refused.stderr
    (clone / "new.txt").unlink()
    fork(clone, *asked, "--into", str(beside)), fork(clone, *asked)
    assert files(clone) == files(beside)
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
    sample_of(["all"], ["all", "reports", "packing", "search", "benchmarks reports", "shakespeare container"]),
)
def test_the_commands_of_a_fork_s_readme_run(
    with_few_tests: Path, parts: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, without: str
) -> None:
    """What makes a file that a later command reads may have gone, and this command must have gone with it."""
    folder, bare = tmp_path / "fork", bare_python(tmp_path / "bare")
    left = parts if without == "all" else without.split()
    fork(with_few_tests, "small_one", "--without", *left, "--into", str(folder))
    readme = (folder / "README.md").read_text()
    typed_in = [
        (kind, block) for kind, block in re.findall(r"^```(bash|python)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    ]
    assert len(typed_in) > 3
    with environment_in(with_fewer_digits(folder), tmp_path_factory.mktemp("door")):
        for kind, block in typed_in:
            (folder / "block.py").write_text(block)
            for command in ["./run python block.py"] if kind == "python" else block.splitlines():
                shell(command, folder, bare)
    kept = {path.stem for path in (folder / "src").glob("*.py")}
    for name in {path.stem for path in (with_few_tests / "src").glob("*.py")} - kept:
        assert not re.search(rf"(run |^src/\*\.py.*)\b{name}\b", readme, re.MULTILINE), name


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
    template: Path, with_few_tests: Path, tools: Any, prune: Any, parts: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "fork"
    for without in forks_of_pairs(tools, parts)[:: sample_of(8, 1)]:
        whole = sample_of(with_few_tests, template)
        fork(whole, "--without", *without, "--into", str(folder))
        check_imports(folder, prune)
        run(folder, "-c", COLLECT, "lab")
        shutil.rmtree(folder)


def count_tests(folder: Path) -> int:
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return len([node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")])


def typed(folder: Path, command: str, seconds: float = 120) -> str:
    """In a shell of the folder, without any network. pip takes what is installed."""
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_FIND_LINKS": "", "PYTHONPATH": ""}
    identity = {f"GIT_{who}_{key}": "me" for who in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    env = {**os.environ, **offline, **identity}
    done = called(["bash", "-c", command], seconds=seconds, cwd=folder, env=env, fresh=True)
    return done.stdout + done.stderr


def changed_tests(template: Path, fork: Path) -> list[str]:
    """The files of its tests that are not word for word the template's, but for the package's name."""
    before = {path: text.replace(b"lab", b"small_one") for path, text in files(template / "tests").items()}
    tests = {path: text for path, text in files(fork / "tests").items() if "/test_" in path}
    names = [f"tests/{path}" for path, text in tests.items() if before.get(path) != text]
    assert len(names) > 5
    return names


def check_another_engine(folder: Path, site: Path, train_it: str) -> None:
    """A run of the installed engine; then another version is installed. --steps ends the second run there."""
    typed(folder, f"{train_it} {' '.join(SMALL)} trainer.max_steps=4 trainer.save_every=2 hydra.run.dir=outputs/a")
    again = "./run verify outputs/a --steps 2"
    for more in ("", " --commit own"):
        said = typed(folder, again + more)
        assert "a: 2 steps again, equal bit for bit" in said
        assert "surroundings differ" not in said
    change(site / "samebits/__init__.py", '__version__ = "', '__version__ = "9.')
    for more in ("", " --commit own"):
        said = typed(folder, again + more)
        assert "a: 2 steps again, equal bit for bit" in said
        assert re.search(r"^  surroundings differ: samebits ([\d.]+) -> 9\.\1$", said, re.MULTILINE)
        assert re.search(r"^  code: .* libraries .*installed.*: samebits ([\d.]+) -> 9\.\1$", said, re.MULTILINE)
    change(site / "samebits/__init__.py", '__version__ = "9.', '__version__ = "')


@pytest.mark.slow
@pytest.mark.timeout(7200)  # with TESTS_ALL=1 all of its quick tests, which take minutes
@pytest.mark.parametrize("asked", sample_of(["all"], ["engine", "all"]))
def test_the_tests_of_a_small_fork_pass(template: Path, tools: Any, tmp_path: Path, asked: str) -> None:
    """Without the engine; the files of tests that are others than the template's. What the command says is typed, to
    the letter."""
    without = tools.PARTS if asked == "all" else [asked]
    done = fork(template, "small_one", "--without", *without, "--into", str(tmp_path))
    assert done.stderr == ""
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
    assert engine(own) == engine(template)
    typed(tmp_path, ".ci/python -m mypy", 300)
    typed(tmp_path, f"{train_it} -m {' '.join(SMALL)} trainer.max_steps=2 seed=1,2 sweep=two")
    assert len(list((tmp_path / "outputs/default/sweeps/two").glob("seed-*/result.json"))) == 2
    assert (tmp_path / "outputs/default/sweeps/two/report.html").exists()  # of files that are not Python
    check_another_engine(tmp_path, own, train_it)
    names = sorted(changed_tests(template, tmp_path))[sample_of(3, 0) :: sample_of(40, 1)]
    assert len(names) > 1
    assert re.search(r"\d+ passed", typed(tmp_path, f"{test_it} -n {sample_of(0, 2)} {' '.join(names)}", 1200))


# -- a later version -------------------------------------------------------------------------------------------------


def copier(folder: Path, *arguments: str) -> None:
    run(folder, "-m", "copier", *arguments, "--trust", "--defaults", "--vcs-ref", "HEAD")


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
    conflict = (mine / "conf/optim/adamw.yaml").read_text()
    both = re.compile(r"<<<<<<< .*\n(.*)\n(?:\|\|\|\|\|\|\| .*\n.*\n)?=======\n(.*)\n>>>>>>> .*\n")
    found = both.search(conflict)
    assert found is not None
    assert found.groups() == ("lr: 2e-3 # ours", "lr: 3e-3")
    (mine / "conf/optim/adamw.yaml").write_text(both.sub(r"\1\n", conflict))
    commit(mine)

    assert engine(mine) == engine(theirs)
    assert b"NEWER" in files(mine)["packages/samebits/src/samebits/__init__.py"]
    merged = {"loop.py": "The newer loop", "models/newer.py": "fold_it.models", "models/mlp.py": "OURS"}
    for name, text in merged.items():
        assert text in (mine / "src/fold_it" / name).read_text()
    gone = ("src/lab", "src/fold_it/tasks/gan.py", "conf/callback/pictures.yaml", "conf/debug/nan.yaml")
    assert [name for name in gone if (mine / name).exists()] == []

    newer = "model._target_=fold_it.models.newer.Newer"
    run(mine, "src/train.py", "resume=outputs/run", "trainer.max_steps=8")
    run(mine, "src/train.py", *SMALL, newer, "trainer.max_steps=2", "hydra.run.dir=outputs/newer")
    assert [result(mine / "outputs" / name)["step"] for name in ("run", "newer")] == [8, 2]
