"""Define PROGRAM, the functions of this project that samebits calls; the commands pass it to samebits.

lab.project has the constants. In lab, only lab.notebook imports this module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lab.project import PROJECT
from samebits.project import Program


def late(name: str) -> Callable[..., Any]:
    """Return the function module:name, which is imported when it is called, so that commands start without torch."""
    return partial(_call, name)


def _call(name: str, *given: Any) -> Any:
    return resolve_name(name)(*given)


def training() -> Callable[[Any], dict[str, Any]]:
    """Return the function that trains on one rank, lab.run.train."""
    from lab.run import train

    return train


def start(cfg: Any, directory: Path, overrides: list[str], own_process: bool) -> None:
    """Train in `directory`, or resume the run there, as ./run train does. own_process: False trains in this process."""
    from samebits.process import start

    start(PROGRAM, PROGRAM.read(cfg), directory, overrides, own_process)


PROGRAM = Program(
    **vars(PROJECT),
    check=late("lab.config:check"),
    read=late("lab.config:Config.of"),
    scores=late("lab.config:score_names"),
    fetch=late("lab.loaders:fetch_remote"),
    measure=late("lab.tune:measure"),
    training=training,
)
