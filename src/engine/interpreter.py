"""Importing this re-executes the command with .venv's Python if this one lacks the project's packages. For the commands
in src/ only, before they import installed packages."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parent.parent  # of src/<command>.py
NEEDED = ("hydra", "omegaconf", "torch", "numpy", "h5py")
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
        f"which makes the environment, or first: pip install -e {ROOT}",
        file=sys.stderr,
    )
    sys.exit(2)


find()
