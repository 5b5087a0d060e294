"""Save paths below the project's root relative to it in a run's config.yaml, so that a run can be moved.

    /home/a/project/data/x.h5 -> ${root:}/data/x.h5 -> /scratch/b/project/data/x.h5, if b's project reads it

This applies to any string that is an absolute path below the root, for any key. conf/ also uses `${root:}`.
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
    """Return a plain node whose paths below `root` start with ${root:}, and whose credentials are redacted."""

    def one(text: str) -> str:
        below = _below(text, root)
        return redacted(text) if below is None else f"{HERE}{below}"

    return change_texts(node, one)


def localized(root: Path, node: Any) -> Any:
    """Return a plain node with ${root:} at the start of a string replaced by `root`, and with restored credentials."""

    def one(text: str) -> str:
        return f"{root}{text[len(HERE) :]}" if f"{text}/".startswith(f"{HERE}/") else restored(text)

    return change_texts(node, one)


def moved_here(root: Path, node: Any, was: Path | None) -> Any:
    """Return the node of a run with absolute paths below `was` replaced by paths below `root`, if these exist.

    was: the root of the project that saved the run; None: unknown. root: the root of this project.
    """

    def one(text: str) -> str:
        below = _below(text, was) if was is not None and os.path.isabs(text) else None
        here = f"{root}{below}"
        return here if below and (os.path.lexists(here) or glob(here)) else text

    return node if was in (None, root) else change_texts(node, one)


def writer(directory: Path) -> Path | None:
    """Return the root of the project that started the run in `directory`; None if unknown (not a command of src/)."""
    try:
        known = read_json(directory / ENVIRONMENT)
    except (CorruptFileError, OSError):  # no error here: code that needs the file raises it
        return None
    cwd, command = known.get("cwd"), known.get("command")
    if not isinstance(cwd, str) or not isinstance(command, list) or not command or not isinstance(command[0], str):
        return None
    script = Path(os.path.normpath(os.path.join(cwd, command[0])))
    return script.parents[1] if script.parent.name == "src" else None


def _below(text: str, root: Path) -> str | None:
    """Return the part of an absolute path after the root (/data/x.h5), also through a link; None if it is not below."""
    if not os.path.isabs(text) or root == Path(root.anchor):
        return None
    path = Path(os.path.normpath(text))
    if path.is_relative_to(root):
        rest = text.removeprefix(str(root))  # as it was written, if it does not contain `..` in the root
        return rest if rest != text else f"/{path.relative_to(root)}"
    for above in path.parents if root.exists() else ():
        if above.name and os.path.exists(above) and os.path.samefile(above, root):
            return f"/{path.relative_to(above)}"
    return None
