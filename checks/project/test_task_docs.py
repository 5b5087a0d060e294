"""docs/tasks.md: the method that it shows, put where it says, is trained by the commands that it gives."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from common import ROOT, needs
from fork import copy_of_the_project, run_python
from pages import DOCS, OURS, commands, write_files

from samebits.testing import result

pytestmark = needs("docs/tasks.md", "data/digits.h5", "conf/model/mlp.yaml")
TEXT = DOCS.get("tasks.md", "")
CASE = "tests/lab/test_task_denoising.py"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_the_project(tmp_path_factory.mktemp("clone"))
    assert write_files(TEXT, copy).keys() == {"src/lab/tasks/denoising.py", "conf/task/denoising.yaml", CASE}
    return copy


@pytest.mark.slow
def test_the_commands_run(clone: Path) -> None:
    for number, line in enumerate(commands(TEXT)):
        run, script, *words = shlex.split(line)
        assert run == "./run"
        more = () if number else ("trainer.max_epochs=1",)
        run_python(clone, f"src/{script}.py", *words, f"name=run{number}", "logger=none", *more)
        runs = sorted((clone / f"outputs/run{number}").rglob("result.json"))
        assert len(runs) == 1 + number
        found = result(runs[0].parent)
        assert found["val/loss"] == pytest.approx(found["val/error"] + 0.01 * found["val/magnitude"], rel=1e-5)


@pytest.mark.slow
def test_the_method_keeps_what_is_promised(clone: Path) -> None:
    run_python(clone, "-m", "pytest", "-q", CASE)


def test_every_shipped_method_is_in_the_list() -> None:
    if OURS:  # a fork has its own
        missing = [path.stem for path in (ROOT / "conf/task").glob("*.yaml") if f"`{path.stem}`" not in TEXT]
        assert not missing, f"no row in the table of docs/tasks.md: {missing}; a fork (./run fork) needs none"
