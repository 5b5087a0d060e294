"""What this project hands to the engine, which imports nothing of it (engine.app)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import app
from lab.groups import FACTORIES, MOVED, OWN, PATHS, TARGETS_ALLOWED, RootConfig, check, score_names


def start(*arguments: Any, **more: Any) -> None:
    from lab.start import start

    start(*arguments, **more)


def join() -> int:
    from lab.start import join

    return join()


def try_out(cfg: Any, known: Sequence[str]) -> dict[str, Any]:
    from lab.trial import try_out

    return try_out(cfg, known)


app.register(
    app.App("lab", TARGETS_ALLOWED, FACTORIES, RootConfig, OWN, MOVED, PATHS, check, score_names, start, join, try_out)
)
