"""What this program does when the engine asks: the commands that run a config hand PROGRAM down. lab.project has the
facts; nothing else of lab imports this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.project import PROJECT
from samebits.project import Program


def check(cfg: Any) -> Any:
    from lab.config import check

    return check(cfg)


def scores(cfg: Any, *splits: str) -> list[str]:
    from lab.config import score_names

    return score_names(cfg, *splits)


def start(cfg: Any, *arguments: Any, **more: Any) -> None:
    from lab.config import Config
    from lab.start import start

    start(Config.of(cfg), *arguments, **more)


def join() -> int:
    from lab.start import join

    return join()


def try_out(cfg: Any, known: Sequence[str]) -> dict[str, Any]:
    from lab.trial import try_out

    return try_out(cfg, known)


PROGRAM = Program(**vars(PROJECT), check=check, scores=scores, start=start, join=join, try_out=try_out)
