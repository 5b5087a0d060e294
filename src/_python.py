"""Importing this makes a command's Python the right one: the libraries of packages/, where this project has them, come
before installed ones, and a Python that lacks what the project needs becomes .venv's. For the commands in src/ only,
before they import installed packages."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("hydra", "omegaconf", "torch", "numpy", "h5py", "samebits", "h5rows")
TRIED = "LAB_PYTHON"  # is set while .venv's Python is tried, so that one without the packages ends in the message


def find(needed: tuple[str, ...] = NEEDED) -> None:
    """Return where this Python has what is needed; else become .venv's, with all options; else exit with status 2."""
    tried = os.environ.pop(TRIED, None)
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return
    python = str(ROOT / ".venv/bin/python")
    if python not in (tried, sys.executable) and os.access(python, os.X_OK):
        given = getattr(sys, "orig_argv", [sys.executable, *sys.argv])  # -m pdb, -X, -u and the like; since Python 3.10
        os.environ[TRIED] = python
        os.execv(python, [python, *given[1:]])
    print(
        f"error: {tried or sys.executable} has no {', '.join(missing)} - type {ROOT}/run {Path(sys.argv[0]).stem} ..., "
        f"which makes the environment",
        file=sys.stderr,
    )
    sys.exit(2)


# so that what runs is what the run's record names, also in a copy of the project that uses another one's .venv
sys.path[1:1] = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
find()
