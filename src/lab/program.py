"""Define PROGRAM, the functions of this project that samebits calls; the commands pass it to samebits.

lab.project has the constants. In lab, only lab.notebook imports this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.project import PROJECT
from samebits.project import Program


def check(cfg: Any) -> Any:
    """Return the checked config, a lab.config.Config. Raise ConfigError for a mistake."""
    from lab.config import check

    return check(cfg)


def read(cfg: Any) -> Any:
    """Return the typed config of a run that was checked when it began."""
    from lab.config import Config

    return Config.of(cfg)


def scores(cfg: Any, *splits: str) -> list[str]:
    """Return the names of all scores of these splits; see lab.config.score_names."""
    from lab.config import score_names

    return score_names(cfg, *splits)


def fetch(data: Mapping[str, Any], between: Callable[[], object]) -> dict[str, str]:
    """Download the remote files of the config's data; see lab.loaders.fetch_remote."""
    from lab.loaders import fetch_remote

    return fetch_remote(data, between)


def measure(stage: str, cfg: Any) -> Any:
    """Run a stage of `./run tune`; see lab.tune.measure."""
    from lab.tune import measure

    return measure(stage, cfg)


def training() -> Callable[[Any], dict[str, Any]]:
    """Return the function that trains on one rank, lab.run.train."""
    from lab.run import train

    return train


def start(cfg: Any, directory: Path, overrides: list[str], own_process: bool) -> None:
    """Train in `directory`, or resume the run there, as ./run train does. own_process: False trains in this process."""
    from samebits.process import start

    start(PROGRAM, read(cfg), directory, overrides, own_process)


PROGRAM = Program(
    **vars(PROJECT), check=check, read=read, scores=scores, fetch=fetch, measure=measure, training=training
)  # fmt: skip
