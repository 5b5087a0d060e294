"""What this program does when the engine asks: the commands that run a config hand PROGRAM down. lab.project has the
facts; of lab only the notebook's functions import this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.project import PROJECT
from samebits.project import Program


def check(cfg: Any) -> Any:
    from lab.config import check

    return check(cfg)


def read(cfg: Any) -> Any:
    from lab.config import Config

    return Config.of(cfg)


def scores(cfg: Any, *splits: str) -> list[str]:
    from lab.config import score_names

    return score_names(cfg, *splits)


def fetch(data: Mapping[str, Any], between: Callable[[], object]) -> dict[str, str]:
    from lab.loaders import fetch_remote

    return fetch_remote(data, between)


def measure(stage: str, cfg: Any) -> Any:
    from lab.tune import measure

    return measure(stage, cfg)


def training() -> Callable[[Any], dict[str, Any]]:
    from lab.run import train

    return train


def start(cfg: Any, directory: Path, overrides: list[str], own_process: bool) -> None:
    """Run a config in its directory to its end, or resume the run there, as src/train.py does."""
    from samebits.process import start

    start(PROGRAM, read(cfg), directory, overrides, own_process)


def try_out(cfg: Any, known: Sequence[str]) -> dict[str, Any]:
    from lab.trial import try_out

    return try_out(cfg, known)


PROGRAM = Program(
    **vars(PROJECT), check=check, read=read, scores=scores, fetch=fetch, measure=measure, training=training,
    try_out=try_out,
)  # fmt: skip
