"""Tab completion of ./run: bash itself is asked, in a project without an environment too."""

from __future__ import annotations

import os
import pty
import shutil
import sys
from pathlib import Path

import pytest
from common import ROOT

from samebits.testing.processes import called

# COMP_WORDS as bash cuts a line, where = is a word
ASK = """
source tools/complete.bash
COMP_LINE=$1 COMP_POINT=${#1}
read -ra COMP_WORDS <<<"${1//=/ = }"
case $1 in *[\\ =]) COMP_WORDS+=("") ;; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_complete_run
printf '%s\\n' "${COMPREPLY[@]}"
"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing torch fails."""
    (tmp_path / "torch.py").write_text("raise ImportError('completion imported torch')\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}


def offered(line: str, environment: dict[str, str], cwd: Path = ROOT) -> list[str]:
    command = ["bash", "--norc", "-c", ASK, "bash", line]
    done = called(command, None, 30, cwd=cwd, env=environment, fresh=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("./run ", ["train", "evaluate", "lint"]),
        ("./run ver", ["verify"]),
        (f"{ROOT}/run ver", ["verify"]),
        ("./run train mod", ["model=", "model."]),
        ("./run train trainer=", ["ddp", "fsdp"]),
        ("./run train model=resnet model.wi", ["model.width="]),
        ("./run train -m sweep=x optim.l", ["optim.lr="]),
        ("./run train +experiment=dig", ["digits"]),
        ("./run tune optim/schedule=co", ["constant", "cosine"]),
        ("./run train --c", ["--cfg"]),
        ("./run env trainer=", ["ddp", "fsdp"]),
        ("./run env --", ["--json"]),
        ("./run remote --", ["--folder", "--checkpoints"]),
        ("./run evaluate --", ["--split", "--json"]),
        ("./run fork --w", ["--without"]),
    ],
)
def test_words_are_offered(line: str, some: list[str], without_torch: dict[str, str]) -> None:
    found = offered(line, without_torch)
    assert set(some) <= set(found)
    typed = line.split(" ")[-1].rpartition("=")[2]
    assert [word for word in found if not word.startswith(typed)] == []


def test_every_command_is_offered(without_torch: dict[str, str]) -> None:
    known = next(line for line in (ROOT / "run").read_text().splitlines() if line.startswith("train | "))
    assert sorted(offered("./run ", without_torch)) == sorted(known.removesuffix(") ;;").split(" | "))


def project(folder: Path) -> Path:
    """Its run says what it was given; without an environment."""
    for name in ("conf", "src", "tools"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "run").write_text('#!/usr/bin/env bash\necho "got: $*"; exit\n' + (ROOT / "run").read_text())
    (folder / "run").chmod(0o755)
    (folder / "outputs/one").mkdir(parents=True)
    return folder


def test_nothing_is_set_up(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "bin").mkdir()
    for name in ("bash", "sed", "grep", "tr", "sort", "dirname", "env"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    before = sorted(folder.rglob("*"))
    bare = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    assert offered("./run tr", bare, folder) == ["train"]
    assert offered("./run train mod", bare, folder) == []
    assert sorted(folder.rglob("*")) == before


def test_another_run_is_left_alone(tmp_path: Path, without_torch: dict[str, str]) -> None:
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    assert offered("./run tr", without_torch, tmp_path) == []


def test_keys_that_are_typed(tmp_path: Path) -> None:
    """A command, and a file."""
    folder = project(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, b"source tools/complete.bash; echo re''ady\r")
        read_until(terminal, b"ready")
        os.write(terminal, b"./run ver\toutp\ton\t\r")
        assert b"got: verify outputs/one/" in read_until(terminal, b"got: ")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal: int, text: bytes) -> bytes:
    """Up to the end of the line with the text. The test's own limit ends a wait in vain."""
    found = b""
    while text not in found or not found.partition(text)[2].count(b"\n"):
        found += os.read(terminal, 1024)
    return found
