"""Record a rank's failure before its process group is shut down, because the shutdown causes errors on other ranks."""

from __future__ import annotations

import bdb
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from samebits.children import mark_finished
from samebits.errors import RunFailed, users_frames
from samebits.status import end_status, explained_error, record_failure
from samebits.world.board import tell_failed
from samebits.world.watchdog import HangWatchdog


@contextmanager
def recording_failures(run_dir: Path, rank: int, watchdog: HangWatchdog | None = None) -> Iterator[None]:
    """Record the failure that ends the block, including sys.exit() in user code. Raise KeyboardInterrupt or an
    Exception."""
    try:
        yield
    except KeyboardInterrupt:
        end_status(run_dir, "interrupted", signal="SIGINT")
        raise
    except Exception as error:
        found = explained_error(run_dir, error)
        _record(run_dir, rank, found, watchdog)
        if found is error:
            raise
        raise found from error
    except SystemExit as end:
        code = "" if end.code is None else repr(end.code)
        failed = RunFailed(f"rank {rank} called sys.exit({code}) at {_place(end)}")
        _record(run_dir, rank, failed, watchdog)
        raise failed from end
    except BaseException as error:
        _record(run_dir, rank, error, watchdog)
        raise RunFailed(f"{type(error).__name__}: {error}") from error


@contextmanager
def quitting_debugger(warn: Callable[[str], None]) -> Iterator[None]:
    """Convert BdbQuit, which `q` at a breakpoint raises, to KeyboardInterrupt: the user ends the run, and no code is
    wrong. Warn where, because a breakpoint without a terminal raises it, too."""
    try:
        yield
    except bdb.BdbQuit as error:
        warn(f"the debugger was quit at {_place(error)}: the run ends as after Ctrl-C")
        raise KeyboardInterrupt from error


def _record(run_dir: Path, rank: int, error: BaseException, watchdog: HangWatchdog | None) -> None:
    if watchdog is not None:
        watchdog.record_dead_peers()  # the death of another rank may have caused this error
    vars(error).setdefault("failed_at", time.monotonic())  # read by launch.py if the failure cannot be recorded
    first = record_failure(run_dir, rank, error)
    mark_finished()
    if first:
        tell_failed(rank, os.environ)


def _place(error: BaseException) -> str:
    """Return file:line of the frame that called sys.exit, not of a library's hook around it, such as wandb's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = users_frames(frames) or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown place"
