"""The README is what a newcomer types: every command in it runs, in order, in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, limit

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines() if line.strip()]
OWN = {"./run test", "./run lint"}  # these run this test; .ci/run calls both


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked and new files, with the environment that runs this test as .venv."""
    copy = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    stamp = subprocess.run(["cksum"], stdin=open(copy / "pyproject.toml"), capture_output=True, text=True, check=True)  # noqa: SIM115
    (copy / ".venv/bin").mkdir(parents=True)
    (copy / ".venv/bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (copy / ".venv/bin/python").chmod(0o755)
    (copy / ".venv/stamp").write_text(stamp.stdout)
    return copy


def run(command: list[str], clone: Path) -> subprocess.CompletedProcess[str]:
    path = f"{clone}/.venv/bin{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{clone}/src", "WANDB_MODE": "offline"}
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=limit(120))


def test_the_commands_run_in_order(clone: Path) -> None:
    assert len(COMMANDS) > 10
    for command in COMMANDS:
        if command not in OWN:
            done = run(["bash", "-c", command], clone)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for kind, block in BLOCKS:
        if kind == "python":
            done = run([sys.executable, "-c", block], clone)
            assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_ci_calls_the_readme_s_commands() -> None:
    for command in OWN:
        assert command in COMMANDS
        assert command in (ROOT / ".ci/run").read_text()


def test_it_is_short_and_names_only_what_there_is() -> None:
    assert len(README.splitlines()) <= 200
    for name in re.findall(r"`((?:src|conf|tests|benchmarks|data)/[\w./-]+)`", README):
        assert (
            ROOT / name.replace("/x.", "/__init__." if name.endswith("x.py") else "/.")
        ).exists() or "/x." in name, name


def test_a_mistyped_command_of_run_shows_the_usage(clone: Path) -> None:
    done = run(["./run", "tain"], clone)
    assert done.returncode == 2
    assert "usage: ./run train" in done.stderr
