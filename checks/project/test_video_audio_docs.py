"""docs/video_audio.md: its files, put where it says, and its commands learn from windows of generated data."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest
import yaml
from common import ROOT, needs
from fork import copy_of_the_project, run_python
from pages import FENCE, commands

from samebits.testing import result

pytestmark = needs("docs/video_audio.md", "conf/data/transforms/window.yaml")
PAGE = ROOT / "docs/video_audio.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
FILES = {file: body for file, _, body in FENCE.findall(TEXT) if file}


def test_its_files_can_be_read() -> None:
    assert len(FILES) == 8
    for file, body in FILES.items():
        assert ast.parse(body) if file.endswith(".py") else yaml.safe_load(body)


@pytest.mark.slow
def test_the_commands_learn(tmp_path: Path) -> None:
    clone = copy_of_the_project(tmp_path / "clone")
    for file, body in FILES.items():
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        (clone / file).write_text(body)
    typed = [shlex.split(line) for line in commands(TEXT)]
    assert [words[1] for words in typed] == ["python", "train"] * 2
    for k, (_, program, *words) in enumerate(typed):
        if program == "python":
            run_python(clone, *words)
            continue
        run_python(clone, "src/train.py", *words, "logger=none", f"hydra.run.dir=outputs/run{k}", seconds=300)
        assert result(clone / f"outputs/run{k}")["val/accuracy"] > 0.9
