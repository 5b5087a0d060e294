"""Dockerfile and .devcontainer: what they name is there, and fits together. Nothing is built."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from common import ROOT


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """(instruction, its words) of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines()]


@pytest.fixture(scope="module")
def editor() -> dict[str, Any]:
    return json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())


def test_what_is_copied_and_run_is_there(steps: list[tuple[str, str]]) -> None:
    copied = [name for step, words in steps if step == "COPY" for name in words.split()[1:-1]]
    assert "pyproject.toml" in copied
    assert [name for name in copied if name[-1] != "*" and not (ROOT / name).exists()] == []
    needed = re.findall(r'^(?:readme|license) = .*?"([\w.]+\w)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {*needed, "run", "constraints.txt"} <= {name.rstrip("*") for name in copied}  # what an installation reads
    assert ("ENTRYPOINT", '["./run"]') in steps
    for step, words in steps:
        if step == "RUN" and "./run" in words:
            command = words.partition("./run ")[2].split()[0]
            assert re.search(rf"\| {command}\b", (ROOT / "run").read_text())
        for name in re.findall(r"~/project/([\w./]+)", words):
            assert (ROOT / name).exists()


def test_its_python_is_one_of_the_project_s(steps: list[tuple[str, str]]) -> None:
    image = next(words for step, words in steps if step == "FROM")
    low, high = re.findall(r"3\.(\d+)", re.search(r"requires-python = .*", (ROOT / "pyproject.toml").read_text())[0])  # type: ignore[index]
    assert int(low) <= int(re.fullmatch(r"python:3\.(\d+)-slim", image)[1]) < int(high)  # type: ignore[index]


def test_nothing_is_run_as_root(steps: list[tuple[str, str]]) -> None:
    names = [step for step, _ in steps]
    assert names.index("USER") < names.index("COPY")
    assert names.count("USER") == 1
    assert not [words for step, words in steps if step == "COPY" and not words.startswith("--chown=me ")]


def test_the_editor_s_container_is_this_image(steps: list[tuple[str, str]], editor: dict[str, Any]) -> None:
    assert (ROOT / ".devcontainer" / editor["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (ROOT / ".devcontainer" / editor["build"]["context"]).resolve() == ROOT
    folder = next(words for step, words in steps if step == "WORKDIR")
    assert editor["workspaceFolder"] == folder
    assert f"target={folder}," in editor["workspaceMount"]
    (venv,) = editor["mounts"]  # the image's, not the host's, whose paths are others
    assert f"target={folder}/.venv,type=volume" in venv
    assert f" {editor['remoteUser']}" in next(words for _, words in steps if words.startswith("useradd"))


def test_no_file_of_the_project_is_left_out_of_the_image() -> None:
    """.dockerignore's patterns mean in .gitignore what they mean there."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    asked = ["git", "ls-files", "--cached", "--ignored", "--exclude-from=.dockerignore"]
    assert subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""
    rules = (ROOT / ".dockerignore").read_text().split()
    assert {"**/.venv", "outputs/*", "**/*.h5"} <= set(rules)
