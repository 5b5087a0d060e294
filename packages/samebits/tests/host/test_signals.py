"""What Ctrl-C, SIGTERM and SIGHUP leave, whenever they arrive."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

from samebits.children import run_in_subprocess
from samebits.signals import temporary_folder


def interrupted_at(line: int, folder: Path, number: signal.Signals = signal.SIGINT) -> bool:
    """Make, use and remove a temporary folder with a signal at the `line`-th line that Python runs, in whatever file.
    Returns whether that line was reached."""
    reached = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal reached
        if event == "line":
            reached += 1
            if reached == line:
                sys.settrace(None)
                signal.raise_signal(number)
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


def ended_everywhere(folder: Path, numbers: tuple[signal.Signals, ...]) -> list[int]:
    """Returns the exit status of a process for each line, which gets these signals in turn; the last one gets none."""
    gc.disable()
    ended: list[int] = []
    while not ended or ended[-1] != 0:
        number = numbers[len(ended) % len(numbers)]
        if not (child := os.fork()):
            signal.signal(number, signal.SIG_DFL)
            status = 0
            try:
                interrupted_at(len(ended) + 1, folder, number)
            except SystemExit as end:
                status = int(end.code or 0)
            os._exit(status)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert not list(folder.iterdir()), f"ended at line {len(ended)}"
    return ended


def test_nor_does_a_signal_that_ends_a_process_leave_it(tmp_path: Path) -> None:
    """As `kill` and a closed terminal send it. Before and after the block, the signal has its usual effect."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    ended = run_in_subprocess("ended", ended_everywhere, tmp_path, numbers)
    assert set(ended) == {0, *(status for number in numbers for status in (-number, 128 + number))}
    assert min(ended.count(128 + number) for number in numbers) > 25


def test_a_process_that_a_command_forks_in_the_block_ends_as_usual(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other tests of this process may have set a handler
    try:
        with temporary_folder("work-", tmp_path):
            if not (child := os.fork()):
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
