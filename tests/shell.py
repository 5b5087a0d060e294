"""Commands as a newcomer types them: from a shell whose `python` has no packages and that has heard of no environment,
in a copy of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import limit
from fork import copy_of_the_project


def bare_python(folder: Path) -> Path:
    """Returns a folder with a `python` that has no packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    return folder / "python/bin"


def clone_with_environment(folder: Path) -> Path:
    """The project after `./run` has made .venv, which is here the environment that runs the tests."""
    copy = copy_of_the_project(folder)
    executable(copy / ".venv/bin/python", f'exec env PYTHONPATH="{copy}/src" "{sys.executable}" "$@"')
    for extra in ("all", "dev"):
        (copy / f".venv/stamp.{extra}").write_text(stamp_of(copy))
    return copy


def stamp_of(folder: Path) -> str:
    """As ./run writes it."""
    files = b"".join((folder / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    return subprocess.run(["cksum"], input=files, capture_output=True, check=True).stdout.decode()


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def shell(command: str, folder: Path, bare: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """As typed into a shell that was opened in `folder`."""
    environment = {
        "HOME": str(bare),
        "PATH": f"{bare}:/usr/bin:/bin",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        **more,
    }
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=limit(120)
    )
