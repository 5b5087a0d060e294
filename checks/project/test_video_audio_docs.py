"""docs/video_audio.md: its files, put where it says, and its commands learn from windows of generated data."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from common import needs
from fork import copy_of_the_project, run_python
from pages import DOCS, commands, write_files

from samebits.testing import result

pytestmark = needs("docs/video_audio.md", "conf/data/transforms/window.yaml")
TEXT = DOCS.get("video_audio.md", "")


@pytest.mark.slow
def test_the_commands_learn(tmp_path: Path) -> None:
    clone = copy_of_the_project(tmp_path / "clone")
    assert len(write_files(TEXT, clone)) == 8
    typed = [shlex.split(line) for line in commands(TEXT)]
    assert [words[1] for words in typed] == ["python", "train"] * 2
    for k, (_, program, *words) in enumerate(typed):
        if program == "python":
            run_python(clone, *words)
            continue
        run_python(clone, "src/train.py", *words, "logger=none", f"hydra.run.dir=outputs/run{k}", seconds=300)
        assert result(clone / f"outputs/run{k}")["val/accuracy"] > 0.9
