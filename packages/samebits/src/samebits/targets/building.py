"""Build the object that a node names. An error in its class becomes one line with key, values, file and line."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError, RunFailed, users_frames
from samebits.project import Project
from samebits.schema import join, show
from samebits.targets.nodes import below, build_target

TRACEBACK = "LAB_TRACEBACK"  # if this variable is set, the command also prints the traceback
LONGEST = 300  # characters of a message or of values


def construct(project: Project, key: str, node: Mapping[str, Any], kind: type | None = None, **arguments: Any) -> Any:
    """Return the object that `node` names, built from its keywords and `arguments`. key: the node's key in the config.

    kind: the class that it must be an instance of; None: any callable. Raise ConfigError if it cannot be built.
    """
    with constructing(project, key, node):
        built = build_target(project, node, key, **arguments)
    return of_kind(key, node, built, kind)


def of_kind(key: str, node: Mapping[str, Any], built: Any, kind: type | None) -> Any:
    """Return `built` if it is an instance of `kind` (None: if it is callable). Otherwise raise ConfigError."""
    if not (callable(built) if kind is None else isinstance(built, kind)):
        wanted = "a callable" if kind is None else f"a {kind.__module__}.{kind.__qualname__}"
        raise ConfigError(
            f"{join(key, '_target_')}: expected {wanted}, but {node['_target_']} gives {article(type(built).__name__)}"
        )
    return built


@contextlib.contextmanager
def constructing(project: Project, key: str, node: Mapping[str, Any]) -> Iterator[None]:
    """Convert an error of the node's target within this block to ConfigError, unless its cause is the machine (no
    memory)."""
    try:
        yield
    except (ConfigError, RunFailed, BdbQuit):
        raise
    except Exception as error:
        if _of_the_machine(error):
            raise
        raise ConfigError(refusal(project, key, node, error)) from error


def refusal(project: Project, key: str, node: Mapping[str, Any], error: Exception) -> str:
    """Return the line for an error: model.dropout=1.5: lab.models.mlp.MLP cannot be built: its message (ValueError,
    file, line)."""
    said = _short(" ".join(str(error).split()))
    values = {name: value for name, value in node.items() if not name.startswith("_")}
    named = [name for name in values if re.search(rf"\b{re.escape(name)}\b", said)]
    if len(named) == 1:  # the message names the argument with the wrong value
        head, given = f"{join(key, named[0])}={show(values[named[0]])}", ""
    else:
        head = key
        given = _short(", ".join(f"{name}={show(value)}" for name, value in values.items()))
        given = f" with {given}" if given else ""
    target = str(node.get("_target_"))
    place = ", ".join([type(error).__name__, *_place(project, target, error)])
    return (
        f"{head}: {target} cannot be built{given}: {said or 'no message'} ({place}; {TRACEBACK}=1 prints the traceback)"
    )


def article(name: str) -> str:
    """Return the name with its article: a List, an Array."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _of_the_machine(error: Exception) -> bool:
    """Return True if the cause is the machine (no memory, disk or network errors), so that the config may be right."""
    mistakes = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, FileExistsError)
    memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    return memory or (isinstance(error, OSError) and not isinstance(error, mistakes))


def _place(project: Project, target: str, error: Exception) -> list[str]:
    """Return [file, line] of the last frame outside of libraries, otherwise of the last; [] if the call itself
    failed."""
    frames = list(traceback.extract_tb(error.__traceback__))
    begin = max((i + 1 for i, frame in enumerate(frames) if "hydra" in Path(frame.filename).parts), default=len(frames))
    with contextlib.suppress(Exception):  # a target without a source file, or without a frame
        own = inspect.getsourcefile(getattr(sys.modules[target.rpartition(".")[0]], target.rpartition(".")[2]))
        begin = next(i for i, frame in enumerate(frames) if frame.filename == own)
    inner = frames[begin:]
    for last in (users_frames(inner) or inner)[-1:]:
        return [below(project.root, last.filename), f"line {last.lineno}"]
    return []


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
