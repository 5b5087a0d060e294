"""How processes start and how they end. Importing this imports no torch.

A run of one rank stays in the parent's process, so a debugger works. Several ranks, and every job of a multirun, are
processes of their own, forked from a parent that has imported torch once, made no CUDA call and started no thread
(measured: as fast to the first step as one process; spawn takes a second and a half more). Where fork is not safe
(macOS) they are spawned. The parent hands over the run directory and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.directory import failure, record_failure
from lab.distributed import all_sum, rank_environment
from lab.errors import RunFailed

if TYPE_CHECKING:
    from lab.distributed import World

SETTLE_S = 0.1  # ranks end within this of each other when one fault ends them all
GRACE_S = 5.0  # what the other ranks get to end by themselves after one has failed


def run_processes(target: Callable[[Path], None], directory: Path, num_procs: int) -> None:
    """Run target(directory) in num_procs ranks until all have ended; RunFailed when one did not end well."""
    import torch.multiprocessing as mp

    method = "fork" if sys.platform == "linux" else "spawn"
    with tempfile.TemporaryDirectory(prefix="lab-") as meeting:
        store = str(Path(meeting) / "store")
        context = mp.start_processes(
            _rank_main, (target, directory, num_procs, store), nprocs=num_procs, join=False, start_method=method
        )
        assert context is not None
        try:
            with _forwarding_sigterm(context.processes):
                _wait_for_the_first_end(context.processes, directory)
                while not context.join(grace_period=GRACE_S):
                    pass
        except KeyboardInterrupt:
            _let_end(context.processes)
            raise
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
            if failure(directory) is None:
                record_failure(directory, error.error_index, RunFailed(f"rank {error.error_index}: {error.msg}"))
            raise RunFailed(str(error)) from None
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _wait_for_the_first_end(processes: list[Any], directory: Path) -> None:
    """Until all ranks have ended well, or one has not. One that a signal killed cannot say so itself, and the others
    would: that their connection broke."""
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in connection.wait(list(running)):
            if running.pop(sentinel).exitcode != 0:  # type: ignore[call-overload]
                time.sleep(SETTLE_S)
                for rank, process in enumerate(processes):
                    if process.exitcode is not None and process.exitcode < 0:
                        name = signal.Signals(-process.exitcode).name
                        memory = " (the kernel does that when memory runs out: see dmesg)" if name == "SIGKILL" else ""
                        cause = RunFailed(f"rank {rank} was killed by {name}{memory}")
                        record_failure(directory, rank, cause, first=True)
                        return
                return


@contextmanager
def _forwarding_sigterm(processes: list[Any]) -> Iterator[None]:
    """A scheduler signals the parent alone; the ranks are to save and end."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: _ask_to_end(processes))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ask_to_end(processes: list[Any]) -> None:
    for process in processes:
        process.terminate()


def _let_end(processes: list[Any]) -> None:
    """After Ctrl-C the ranks save and end; a second one ends them now. (A terminal has signalled them too: SIGTERM, as
    it can be told apart from a second Ctrl-C, does no harm.)"""
    _ask_to_end(processes)
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()


def _rank_main(index: int, target: Callable[[Path], None], directory: Path, num_procs: int, store: str) -> None:
    die_with_parent()
    os.environ.update(rank_environment(index, num_procs, store))
    target(directory)


def die_with_parent() -> None:
    """The kernel kills this rank when its parent has gone, however that went (Linux only)."""
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    _prctl_pr_set_pdeathsig(signal.SIGKILL)


class StopRequest:
    """Set by SIGINT or SIGTERM; the loop looks at it after each step. A second SIGINT raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self.signal: signal.Signals | None = None  # what all ranks have agreed to stop for

    def agreed(self, world: World, meeting: bool) -> bool:
        """Whether all ranks stop now. Several ranks decide together, where they meet: a log, evaluation, save."""
        if world.size == 1:
            self.signal = self.requested
        elif meeting:
            import torch

            flag = all_sum(torch.tensor([float(self.requested is not None)]), world)
            if flag.item():
                self.signal = self.requested or signal.SIGTERM
        return self.signal is not None

    def _handle(self, number: int, frame: Any) -> None:
        if self.requested is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is None and os.environ.get("LOCAL_RANK", "0") == "0":
            when = (
                "after this step" if os.environ.get("WORLD_SIZE", "1") == "1" else "at the next log, evaluation or save"
            )
            os.write(2, f"\n{signal.Signals(number).name}: saving and stopping {when}; Ctrl-C again: now\n".encode())
        self.requested = self.requested or signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask the loop to stop, for the length of the block."""
    request = StopRequest()
    before = {number: signal.signal(number, request._handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
