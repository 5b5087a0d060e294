"""Files of a run: JSON that every parser reads, and the patch of what was not committed."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from samebits.code import environment
from samebits.files import as_json
from samebits.status import shown


def test_json_files_are_json() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5, (2, -math.inf)], "c": {"d": None, "e": True}}
    text = as_json(value)
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5, [2, None]], "c": value["c"]}


def test_a_path_is_shown_if_the_working_directory_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert shown(tmp_path) == str(tmp_path)


def test_new_files_are_in_the_patch(tmp_path: Path) -> None:
    """It makes them again, byte for byte; large, binary and hidden ones are named only."""
    texts = {"src/a b.py": "x = 1\n", "no_end.py": "x = '\u00e9'\r\ny", "empty.py": "", "deep/er/z.yaml": "a: 1\n\n\n"}
    others = {
        "image.bin": b"\0\1",
        "latin.txt": b"\xff",
        "large.txt": b"x" * (environment.MOST_OF_ONE + 1),
        ".env": b"K=1",
    }
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C"]
    for name in ("one", "two"):
        subprocess.run([*git, str(tmp_path), "init", "-q", name], check=True)
        (tmp_path / name / "known.py").write_text("x\n")
        subprocess.run([*git, str(tmp_path / name), "add", "."], check=True)
        subprocess.run([*git, str(tmp_path / name), "commit", "-qm", "x"], check=True)
    for name, content in {**{k: v.encode() for k, v in texts.items()}, **others}.items():
        (tmp_path / "one" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "one" / name).write_bytes(content)
    (tmp_path / "one/known.py").write_text("y\n")
    diff = environment.surroundings(tmp_path / "one").diff
    for name in others:
        assert f"# new, not in this patch: {name}\n" in diff
    (tmp_path / "patch").write_bytes(os.fsencode(diff))
    subprocess.run([*git, str(tmp_path / "two"), "apply", str(tmp_path / "patch")], check=True)
    for name, text in {**texts, "known.py": "y\n"}.items():
        assert (tmp_path / "two" / name).read_bytes() == text.encode()
