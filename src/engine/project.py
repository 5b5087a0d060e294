"""The project's folder: what holds src/engine, or, with an engine installed as a wheel, the project that is running."""

from __future__ import annotations

import sys
from pathlib import Path


def find() -> Path:
    """Beside an installed engine: the first project of which `src` is on sys.path, as each command puts it there."""
    sources = [Path(__file__).resolve().parents[1], *(Path(entry).resolve() for entry in sys.path)]
    for source in sources:
        if (source.parent / "conf/train.yaml").is_file():
            return source.parent
    raise ImportError("engine: no folder on sys.path has ../conf/train.yaml - start a command in a project's src")


ROOT = find()
