"""A debugger is known by the frames of what started it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samebits.world import HangWatchdog
from samebits.world.watchdog import in_debugger


def in_module(name: str, function: Callable[[], Any]) -> Any:
    """What the function returns, called from a frame of a module of this name."""
    space: dict[str, Any] = {"__name__": name, "function": function}
    exec("def call():\n    return function()", space)
    return space["call"]()


def test_the_debugger_that_started_a_run_is_none_within_it(tmp_path: Path) -> None:
    """Whatever the modules between are called: an IDE's frames are outside, a prompt's inside."""
    thread = threading.current_thread()

    def run() -> tuple[bool, bool]:
        watchdog = HangWatchdog(tmp_path, 0, 1, 600.0)

        def asked() -> bool:
            return in_debugger(thread, watchdog._outer)

        return asked(), in_module("bdb", asked)

    assert run() == in_module("pydevd", run) == in_module("IPython.core", run) == (False, True)
