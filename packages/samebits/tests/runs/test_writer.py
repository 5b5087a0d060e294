"""The project whose process has written a run."""

from __future__ import annotations

import json
from pathlib import Path

from samebits.saved.paths import writer


def test_the_writer_of_a_run_is_where_its_command_lies(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(
        json.dumps({"cwd": "/gone/project/notes", "command": ["../src/train.py"]})
    )
    assert writer(tmp_path) == Path("/gone/project")
