"""What ended a rank, kept before anything is torn down, so that it comes before what that does to the other ranks."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from engine.errors import RunFailed
from engine.ranks import distributed, heartbeat
from engine.ranks.watch import Watch
from engine.runs import directory


@contextmanager
def recording(run_dir: Path, rank: int, watch: Watch | None = None) -> Iterator[None]:
    """Raises KeyboardInterrupt or an Exception: the run ends as failed too where user code calls sys.exit()."""
    try:
        yield
    except KeyboardInterrupt:
        directory.end_status(run_dir, "interrupted", signal="SIGINT")
        raise
    except Exception as error:
        found = directory.explained(run_dir, error)
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
        watch.record_dead_peers()  # then this error is only its echo
    directory.record_failure(run_dir, rank, error)
    heartbeat.say_ended()


def _status(end: SystemExit) -> str:
    return "" if end.code is None else repr(end.code)


def _place(error: BaseException) -> str:
    """file:line of the last call that Python's own library did not make."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.name != "__call__" or "_sitebuiltins" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown place"


@contextmanager
def no_silent_exit(run_dir: Path, rank: int) -> Iterator[None]:
    """os._exit() in user code would end this process as if all were well, and leave no word."""
    real, owner = os._exit, os.getpid()

    def exit_on_record(status: int) -> NoReturn:
        if os.getpid() == owner:  # not a process that was forked from this one
            caller = sys._getframe(1)
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            error = RunFailed(f"rank {rank} called os._exit({status}) at {place}")
            stack = "".join(traceback.format_stack(caller))
            if directory.record_failure(run_dir, rank, error, stack=stack) and not distributed.has_parent():
                print(f"failed: {error}", file=sys.stderr, flush=True)
            heartbeat.say_ended()
            status = 1
        real(status)

    os._exit = exit_on_record  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = real
