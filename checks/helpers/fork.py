"""A copy of the project, as a clone or a fork has it, and commands there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
from common import LIBRARIES, ROOT

from samebits.testing.processes import called

GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")


def copy_of_the_project(folder: Path) -> Path:
    """The tracked files and the new ones, as they are now."""
    if not (ROOT / ".git").exists():  # it was unpacked from an archive
        left = shutil.ignore_patterns(".venv", "outputs", "wandb", "__pycache__", ".*_cache")
        return Path(shutil.copytree(ROOT, folder, ignore=left, dirs_exist_ok=True))
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    code = (ROOT / "src", *LIBRARIES)
    # compiling them takes longer than most commands
    for cache in (one for source in code for one in source.rglob("__pycache__")):
        # another process may be writing x.pyc as x.pyc.<number>, which is gone a moment later
        written = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(cache, folder / cache.relative_to(ROOT), ignore=written, dirs_exist_ok=True)
    return folder


def with_fewer_digits(copy: Path) -> Path:
    """For commands that train: half of the samples."""
    with h5py.File(ROOT / "data/digits.h5") as whole, h5py.File(copy / "data/digits.h5", "w") as few:
        few.attrs.update(whole.attrs)
        for split in whole:
            for name, values in whole[split].items():
                few[f"{split}/{name}"] = values[: len(values) // 2]
                few[f"{split}/{name}"].attrs.update(values.attrs)
    return copy


def python_path(copy: Path) -> str:
    """Its src/, and its wheels as an installation would unpack them."""
    installed = copy / ".venv/installed"
    for wheel in copy.glob("vendor/*.whl"):
        if not (installed / wheel.name.split("-")[0]).exists():
            with zipfile.ZipFile(wheel) as held:
                held.extractall(installed)
    return os.pathsep.join([str(copy / "src"), *([str(installed)] if installed.exists() else [])])


def run_python(
    copy: Path, *arguments: str, code: int | None = 0, seconds: float = 120, cwd: Path | None = None
) -> subprocess.CompletedProcess[Any]:
    """python with these arguments and the modules of a copy of the project; there, or in `cwd`."""
    environment = {**os.environ, "PYTHONPATH": python_path(copy)}
    return called([sys.executable, *arguments], code, seconds, cwd=cwd or copy, env=environment)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def commit(folder: Path) -> Path:
    """All files as they are, in a new repository if there is none."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return folder


def undrawn(script: str, *arguments: str) -> list[str]:
    """What Python is given to run a script without the pictures of a report, which take longer than a small sweep."""
    begin = f"import sys; sys.modules['matplotlib'] = None; sys.argv = {[script, *arguments]}"
    return ["-c", f"{begin}; import {Path(script).stem} as script; sys.exit(script.main())"]


def run_undrawn(copy: Path, script: str, *arguments: str, cwd: Path | None = None) -> str:
    """src/{script}.py, see above -> all that it says."""
    done = run_python(copy, *undrawn(str(copy / "src" / f"{script}.py"), *arguments), cwd=cwd)
    return done.stdout + done.stderr
