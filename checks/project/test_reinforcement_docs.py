"""docs/reinforcement_learning.md: its files, put where it says, learn to balance the pole, and resume bitwise."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from common import needs
from fork import copy_of_the_project, run_python
from pages import DOCS, commands, write_files

from samebits.testing import assert_undisturbed, result, values

pytestmark = needs("docs/reinforcement_learning.md", "conf/model/mlp.yaml")
TEXT = DOCS.get("reinforcement_learning.md", "")
CASE = "tests/lab/test_task_dqn.py"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_the_project(tmp_path_factory.mktemp("clone"))
    assert len(write_files(TEXT, copy)) == 7
    return copy


@pytest.mark.slow
def test_the_commands_learn_and_resume_bitwise(clone: Path) -> None:
    trained, stopped, resumed, tested = (shlex.split(line) for line in commands(TEXT))
    for words, code in ((trained, 0), (stopped, 75), (resumed, 0)):
        assert words[:2] == ["./run", "train"]
        run_python(clone, "src/train.py", *words[2:], *["logger=none"] * (words != resumed), code=code, seconds=300)
    whole, again = clone / "outputs/dqn", clone / "outputs/stopped"
    scores = values(whole, "val/return")
    assert scores[0] < 30
    assert result(whole)["val/return"] > 150
    assert result(whole)["test/return"] > 150  # other start states
    assert_undisturbed(again, whole)
    assert tested == ["./run", "test", CASE]


@pytest.mark.slow
def test_the_method_keeps_what_is_promised(clone: Path) -> None:
    run_python(clone, "-m", "pytest", "-q", CASE, seconds=300)
