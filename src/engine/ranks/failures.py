"""Record a rank's failure before its process group is shut down, so before the errors this causes on other ranks."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from engine.errors import RunFailed
from engine.host import place, say_ended
from engine.ranks import distributed
from engine.ranks.watch import Watch
from engine.runs import end_status, explained_error, record_failure


@contextmanager
def recording(run_dir: Path, rank: int, watch: Watch | None = None) -> Iterator[None]:
    """Record the failure that ends the block, sys.exit() in user code too. Raises KeyboardInterrupt or an Exception."""
    try:
        yield
    except KeyboardInterrupt:
        end_status(run_dir, "interrupted", signal="SIGINT")
        raise
    except Exception as error:
        found = explained_error(run_dir, error)
        _record(run_dir, rank, found, watch)
        if found is error:
            raise
        raise found from error
    except SystemExit as end:
        failed = RunFailed(f"rank {rank} called sys.exit({_status(end)}) at {_place(end)}")
        _record(run_dir, rank, failed, watch)
        raise failed from end
    except BaseException as error:
        _record(run_dir, rank, error, watch)
        raise RunFailed(f"{type(error).__name__}: {error}") from error


def _record(run_dir: Path, rank: int, error: BaseException, watch: Watch | None) -> None:
    if watch is not None:
        watch.record_dead_peers()  # a peer's death may have caused this error
    vars(error).setdefault("failed_at", time.monotonic())  # for launch.py, where it cannot be recorded
    record_failure(run_dir, rank, error)
    say_ended()


def _status(end: SystemExit) -> str:
    return "" if end.code is None else repr(end.code)


def _place(error: BaseException) -> str:
    """Returns file:line of the frame that called sys.exit."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.name != "__call__" or "_sitebuiltins" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown place"


@contextmanager
def no_silent_exit(run_dir: Path, rank: int) -> Iterator[None]:
    """In this block os._exit(), which could end the process with status 0 and no message, records a failure first."""
    real, owner = os._exit, os.getpid()

    def exit_on_record(status: int) -> NoReturn:
        if os.getpid() == owner:  # not a process that was forked from this one
            caller = sys._getframe(1)
            inside = f" ({place()})" if place() else ""
            where = f"{caller.f_code.co_filename}:{caller.f_lineno}{inside}"
            error = RunFailed(f"rank {rank} called os._exit({status}) at {where}")
            stack = "".join(traceback.format_stack(caller))
            if record_failure(run_dir, rank, error, stack=stack) and not distributed.has_parent():
                print(f"failed: {error}", file=sys.stderr, flush=True)
            say_ended()
            status = 1
        real(status)

    os._exit = exit_on_record  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = real
