"""What a run starts from beside its config: versions, machine, commit, and what the commit lacks. Imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "h5py", "wandb")


class Surroundings(NamedTuple):
    """What a run starts from beside its config."""

    environment: dict[str, Any]
    diff: str


def surroundings() -> Surroundings:
    return Surroundings(environment(), _git("diff", "HEAD"))


def environment() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a vendored or path-installed package has no metadata
            versions[name] = "unknown"
    return {
        "command": sys.argv,
        "cwd": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "git_commit": _git("rev-parse", "HEAD").strip() or None,
        "git_dirty": bool(_git("status", "--porcelain").strip()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def _git(*arguments: str) -> str:
    """The output of git in the project, empty where there is no git or no repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""
