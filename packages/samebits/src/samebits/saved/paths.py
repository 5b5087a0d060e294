"""Paths in a run's config.yaml: below the project's root they are saved relative to it, so that a run can be moved.

    /home/a/project/data/x.h5 -> ${root:}/data/x.h5 -> /scratch/b/project/data/x.h5, where b's project reads it

Any text that is an absolute path below the root is such a path, whatever its key; `${root:}` is what conf/ writes too.
"""

from __future__ import annotations

import os
from glob import glob
from pathlib import Path
from typing import Any

from samebits.credentials import change_texts, redacted, restored
from samebits.errors import CorruptFileError
from samebits.files import read_json

HERE = "${root:}"
ENVIRONMENT = "environment.json"


def portable(root: Path, node: Any) -> Any:
    """Returns a plain node whose paths below `root` begin with ${root:}."""

    def one(text: str) -> str:
        below = _below(text, root)
        return redacted(text) if below is None else f"{HERE}{below}"

    return change_texts(node, one)


def localized(root: Path, node: Any) -> Any:
    """Returns a plain node with ${root:} at the beginning of a text replaced by `root`, and credentials put back."""

    def one(text: str) -> str:
        return f"{root}{text[len(HERE) :]}" if f"{text}/".startswith(f"{HERE}/") else restored(text)

    return change_texts(node, one)


def moved_here(root: Path, node: Any, was: Path | None) -> Any:
    """Returns the node of a run that was saved with absolute paths by a project in `was`: those below it are `root`'s,
    this project's, where it has them, and stay as they are where it has not."""

    def one(text: str) -> str:
        below = _below(text, was) if was is not None and os.path.isabs(text) else None
        here = f"{root}{below}"
        return here if below and (os.path.lexists(here) or glob(here)) else text

    return node if was in (None, root) else change_texts(node, one)


def writer(directory: Path) -> Path | None:
    """The root of the project that began the run in `directory`; None: not known (no command of src/ began it)."""
    try:
        known = read_json(directory / ENVIRONMENT)
    except (CorruptFileError, OSError):  # only where a run is looked at: whoever needs the file says so
        return None
    cwd, command = known.get("cwd"), known.get("command")
    if not isinstance(cwd, str) or not isinstance(command, list) or not command or not isinstance(command[0], str):
        return None
    script = Path(os.path.normpath(os.path.join(cwd, command[0])))
    return script.parents[1] if script.parent.name == "src" else None


def _below(text: str, root: Path) -> str | None:
    """/data/x.h5: what follows the root in an absolute path, also through a link to it; None: it is not below."""
    if not os.path.isabs(text) or root == Path(root.anchor):
        return None
    path = Path(os.path.normpath(text))
    if path.is_relative_to(root):
        rest = text.removeprefix(str(root))  # as it was written, but for a way round through `..`
        return rest if rest != text else f"/{path.relative_to(root)}"
    for above in path.parents if root.exists() else ():
        if above.name and os.path.exists(above) and os.path.samefile(above, root):
            return f"/{path.relative_to(above)}"
    return None
