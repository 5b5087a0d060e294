"""What a Ctrl-C leaves, whenever it comes."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path
from typing import Any

from samebits.children import run_in_subprocess
from samebits.signals import temporary_folder


def interrupted_at(line: int, folder: Path) -> bool:
    """Make, use and remove a temporary folder with a Ctrl-C at the `line`-th line that Python runs, in whatever file.
    Returns whether that line was reached."""
    reached = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal reached
        if event == "line":
            reached += 1
            if reached == line:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    def work() -> None:
        with temporary_folder("work-", folder) as made:
            (made / "part").touch()

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def interrupted_everywhere(folder: Path) -> int:
    """Returns how many lines there are."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # it may run a finalizer here, of another test's object, which would swallow the Ctrl-C
    lines = 1
    while interrupted_at(lines, folder):
        assert not list(folder.iterdir()), f"interrupted at line {lines}"
        lines += 1
    assert not list(folder.iterdir())
    return lines


def test_a_temporary_folder_has_gone_whenever_a_ctrl_c_comes(tmp_path: Path) -> None:
    """In a process of its own: one in which a trace function has raised shows its errors with others as their cause."""
    assert run_in_subprocess("interrupted", interrupted_everywhere, tmp_path) > 50
