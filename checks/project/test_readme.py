"""The README is what a newcomer types: each command in it runs, in order, in a copy of the project."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import ROOT
from shell import bare_python, clone_with_environment, executable, shell

FILE = ROOT / "README.md"
README = FILE.read_text() if FILE.exists() else ""
OURS = README.startswith("# Samebits\n")
templates = pytest.mark.skipif(not OURS, reason="of the template's README; this project has one of its own")
BLOCKS = re.findall(r"^```(bash|python|yaml)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
OWN = "./run test"  # runs this test
THIN = [path.name for path in sorted((ROOT / "src").glob("[a-z]*.py"))]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with clone_with_environment(tmp_path_factory.mktemp("clone")) as folder:
        yield folder


def parts() -> list[Any]:
    """The blocks: a Python one together with the commands before it, a file's with those after it."""
    together: list[list[tuple[str, str]]] = [[]]
    for kind, block in BLOCKS:
        if (kind == "bash" or names_its_file(block)) and any(before == "bash" for before, _ in together[-1]):
            together.append([])
        together[-1].append((kind, block))
    return together


def names_its_file(block: str) -> bool:
    """What a newcomer writes into a file, in place of typing it."""
    return re.match(r"# (src|conf)/", block) is not None


@pytest.mark.slow
@templates
@pytest.mark.one_quick
@pytest.mark.parametrize("part", parts())
def test_the_commands_run_in_order(clone: Path, bare: Path, part: list[tuple[str, str]]) -> None:
    shell("python -c 'import hydra'", clone, bare, code=1)
    for kind, block in part:
        if names_its_file(block):
            (clone / block.splitlines()[0].removeprefix("# ")).write_text(block)
            continue
        if kind == "python":
            (clone / "block.py").write_text(block)
        for command in ["./run python block.py"] if kind == "python" else block.splitlines():
            if command and command != OWN:
                shell(command, clone, bare)


@pytest.mark.slow
def test_format_mends_what_lint_refuses(clone: Path, bare: Path) -> None:
    (clone / "src/own.py").write_text("import sys\nimport os\nprint( os.name,sys.path )")
    shell("./run format", clone, bare)
    assert (clone / "src/own.py").read_text() == "import os\nimport sys\n\nprint(os.name, sys.path)\n"
    (clone / "src/own.py").unlink()


@templates
def test_ci_calls_the_readme_s_commands() -> None:
    for command in (OWN, "./run lint"):
        assert command in README
        assert command in (ROOT / ".ci/run").read_text()


@templates
def test_it_is_short_and_names_only_what_there_is() -> None:
    assert len(README.splitlines()) <= 120
    for name in re.findall(r"`((?:src|packages|conf|tests|benchmarks|data|docs)/[\w./-]+)`", README):
        assert "/x." in name or (ROOT / name).exists(), name


@templates
def test_its_figures_are_those_of_the_benchmarks() -> None:
    """Times and factors of the part on speed, and where they are measured."""
    figure = r"(?<![\d.,])\d[\d.,]*\d"
    results = set(re.findall(figure, (ROOT / "benchmarks/RESULTS.md").read_text()))
    (paragraph,) = re.findall(r"^\*\*Speed\*\*.*?(?=^## )", README, re.MULTILINE | re.DOTALL)
    found = re.findall(figure, paragraph)
    assert {"403", "417", "904"} <= set(found)  # ours, a bare loop, and Lightning
    assert len(found) > 3
    assert not set(found) - results


@pytest.mark.parametrize(
    "typed", ["./run", "./run tain", "./run trian", "./run evalutate", "./run x", "./run xyz", "./run --hlep"]
)
def test_run_shows_its_commands_and_sets_nothing_up(tmp_path: Path, bare: Path, typed: str) -> None:
    for name in ("run", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    done = shell(typed, tmp_path, bare, code=2)
    if typed == "./run":
        assert done.stderr.startswith("usage: ./run COMMAND")
        assert {f"{name}.py" for name in re.findall(r"^  (\w+) ", done.stderr, re.MULTILINE)} > set(THIN)
    else:
        meant = {"tain": "train", "trian": "train", "evalutate": "evaluate"}.get(
            command := typed.removeprefix("./run ")
        )
        hint = f" - did you mean ./run {meant}?" if meant else ""
        what = f"option: {command} - write the command first, ./run COMMAND {command}" if command[0] == "-" else ""
        assert done.stderr == f"no such {what or f'command: {command}{hint}'} (./run --help lists all)\n"
    assert not (tmp_path / ".venv").exists()


# -- a command that is typed with a Python without the packages ------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with the commands, and with no environment."""
    (tmp_path / "src").mkdir()
    for name in (*THIN, "_python.py"):
        shutil.copy2(ROOT / "src" / name, tmp_path / "src" / name)
    return tmp_path


@pytest.mark.slow
def test_a_command_without_any_environment_says_what_to_type(commands: Path, bare: Path) -> None:
    for name in THIN:
        done = shell(f"python src/{name} --help", commands, bare, code=2)
        assert done.stdout == ""
        assert re.fullmatch(r"error: .*/python has no hydra, .*\n", done.stderr)
        assert f"type {commands}/run {name.removesuffix('.py')} ..." in done.stderr


def test_a_command_goes_on_with_the_environment_s_python_as_it_was_typed(commands: Path, bare: Path) -> None:
    executable(commands / ".venv/bin/python", f'echo "$LAB_PYTHON" "$@"; exec "{sys.executable}" -c "print(2)"')
    done = shell("python -X utf8 -u src/train.py -m 'a=[1, 2]'; cd src; python -m train x", commands, bare)
    python = f"{commands}/.venv/bin/python"
    assert done.stdout == f"{python} -X utf8 -u src/train.py -m a=[1, 2]\n2\n{python} -m train x\n2\n"


def test_an_environment_without_the_packages_is_tried_once(commands: Path, bare: Path) -> None:
    executable(commands / ".venv/bin/python", f'exec "{bare}/python" "$@"')
    done = shell("python src/train.py", commands, bare, code=2)
    assert done.stderr.startswith(f"error: {commands}/.venv/bin/python has no hydra")
