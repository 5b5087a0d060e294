"""Start the processes of ranks and wait for their ends. Importing this module does not import torch.

A run with one rank stays in the parent's process, so that a debugger works. Several ranks, and every job of a multirun,
are separate processes, forked from a parent that has imported torch once and has neither called CUDA nor started
threads. The first step is as early as with one process; spawn takes 1.5 s longer. If fork is not safe
(samebits.host.gpu, start_method), ranks are spawned. The parent passes only the run directory.

A rank that fails writes failure.json; the parent writes it for a rank that was killed by a signal. The other ranks end
because of a broken connection or through their watchdog (samebits.world.watchdog); the parent kills ranks that do not.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from samebits import early_signals
from samebits.children import (
    Heartbeats,
    Offsets,
    abort_hung,
    beat,
    die_with,
    exited,
    file_offsets,
    first_signal,
    mark_finished,
    own_offsets,
    readable_stack,
    register_heartbeat,
)
from samebits.errors import ConfigError, RankLost, RunFailed, one_line
from samebits.host import start_method
from samebits.signals import (
    LIKELY_CAUSES,
    SAME_SIGNAL_S,
    handling_signals,
    heeded_signals,
    held_signals,
    temporary_folder,
)
from samebits.status import read_failure, record_failure
from samebits.world.board import tell_failed
from samebits.world.environment import first_rank, rank_environment

POLL_S = 0.5
SETTLE_S = 0.1  # seconds within which all ranks end if one fault ends them
LAST_S = 20.0  # seconds for the other ranks to end after a failure; a rank's watchdog needs 6 s

_UNRECORDED = "\0failed "  # prefix in a rank's pipe, before the time and the line of the failure

LIKELY: dict[int, str] = {  # likely causes of the signals that kill a rank
    **LIKELY_CAUSES,
    signal.SIGABRT: " (native code gave up, as gloo does where ranks join a collective with tensors of different "
    "sizes: see docs/troubleshooting.md#killed-by-sigabrt)",
}


class RankLauncher:
    """The rank processes of one run. Signals to this parent are forwarded to them."""

    def __init__(self) -> None:
        self.signalled: signal.Signals | None = None
        self._signalled_at = 0.0
        self._interrupted = False
        self._processes: list[Any] = []
        self._heartbeats: Heartbeats
        # a pipe from each rank: the output of its faulthandler, or a failure that it could not record
        self._stacks: list[Any] = []
        self._written: list[str] = []  # the text read from them
        self._env: dict[str, str] = {}  # environment of the first rank

    @contextmanager
    def passing_on_signals(self) -> Iterator[None]:
        """Forward signals to the ranks, which save and stop, because schedulers and `kill` signal only the parent. A
        second Ctrl-C kills them."""
        if asked := early_signals.asked():
            self.signalled = signal.Signals[asked]
        with handling_signals(self._handle):
            yield

    def _handle(self, number: int, frame: Any) -> None:
        now, again = time.monotonic(), self.signalled == number == signal.SIGINT
        if again and now - self._signalled_at > SAME_SIGNAL_S:
            if not self._interrupted:  # only once, so that the cleanup is not interrupted
                self._interrupted = True
                raise KeyboardInterrupt
            return
        if not again:
            self.signalled, self._signalled_at = signal.Signals(number), now
        self._signal_ranks(number)

    def _signal_ranks(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def run(self, target: Callable[[Path], None], directory: Path, count: int) -> None:
        """Run target(directory) in `count` ranks and wait for all. Raise RunFailed if one failed."""
        if count < 1:
            raise ConfigError(f"RankLauncher.run: count must be >= 1, got {count}")
        context: Any = mp.get_context(start_method())
        with store_file(context.get_start_method() == "fork") as store:
            heartbeats, pipes = Heartbeats(context, count), [context.Pipe(duplex=False) for _ in range(count)]
            self._heartbeats, self._stacks, self._written = heartbeats, [receive for receive, _ in pipes], [""] * count
            self._env = rank_environment(0, count, store)
            terminal = sys.stdin is not None and sys.stdin.isatty()
            offsets = file_offsets() if context.get_start_method() == "fork" else {}
            common = (target, directory, count, store, os.getpid(), terminal, heartbeats.shared, offsets)
            processes = [
                context.Process(target=_rank_main, args=(rank, stack, *common), name=f"rank-{rank}")
                for rank, (_, stack) in enumerate(pipes)
            ]
            try:
                with held_signals():  # blocked signals are delivered when a rank is ready for them
                    for process in processes:
                        process.start()
                    self._processes = processes
                    if self.signalled is not None:  # the signal came before a rank was started
                        self._signal_ranks(self.signalled)
                self._wait(directory)
            finally:
                for process in processes:
                    if process.pid is not None:
                        process.kill()
                        process.join()
                told = [word for i in range(count) if (word := self._unrecorded(i)) is not None]
                self._processes = []
                for end in (end for pipe in pipes for end in pipe):
                    end.close()
        codes = [process.exitcode for process in processes]
        if codes != [0] * count:
            if 130 in codes:
                raise KeyboardInterrupt
            if told and read_failure(directory) is None:
                line, _, stack = min(told)[1].partition("\n")
                print(stack, file=sys.stderr, end="")
                raise RunFailed(line)
            lost = RankLost(f"the ranks ended with exit status {codes}")
            record_failure(directory, first_rank(count), lost)  # has no effect if a record exists
            raise RunFailed(str(lost))

    def _wait(self, directory: Path) -> None:
        """Wait until all ranks have ended, or until LAST_S after one has failed."""
        running = list(self._processes)
        while running:
            ended = exited(running, POLL_S)
            beat(max(self._heartbeats.latest(), LAST_S + 10))  # for the pool of a sweep, which may watch this process
            if hung := self._heartbeats.overdue():
                self._end_hung(directory, [i for i in hung if self._processes[i].is_alive()])
            for process in ended:
                running.remove(process)
                process.join()
                if process.exitcode != 0 or not self._heartbeats.said(self._processes.index(process)):
                    time.sleep(SETTLE_S)
                    self._record_death(directory)
                    self._let_end(directory)
                    return

    def _end_hung(self, directory: Path, hung: list[int]) -> None:
        """Kill ranks that are stopped by a signal or whose native code holds the GIL, because their watchdogs cannot
        run."""
        first = first_rank(len(self._processes))
        said = {i: f"rank {first + i} hung: {self._heartbeats.why(i, self._processes[i].pid)}" for i in hung}
        for i in hung:
            abort_hung(self._processes[i])
            self._heartbeats.shared[i].said = True
        for i, message in said.items():  # fewest steps first, because only the first record counts
            if not self._record(directory, first + i, message, stack=(stack := self._stack(i))):
                print(f"stack trace of rank {first + i}:\n{stack}", file=sys.stderr, end="")

    def _stack(self, index: int) -> str:
        """Return the output of faulthandler in a rank that has ended."""
        receive = self._stacks[index]
        if receive.poll():
            self._written[index] += os.read(receive.fileno(), 1 << 16).decode(errors="replace")
        return readable_stack(self._written[index])

    def _unrecorded(self, index: int) -> tuple[float, str] | None:
        """Return (time, line and traceback) of a failure that a rank could not record, e.g. because the disk is
        full."""
        if _UNRECORDED not in (text := self._stack(index)):
            return None
        when, _, line = text.partition(_UNRECORDED)[2].partition(" ")
        return float(when), f"rank {first_rank(len(self._stacks)) + index}: {line}"

    def _record_death(self, directory: Path) -> None:
        """Record a rank killed by a signal as the first failure, because the others only report a broken connection."""
        for index, process in enumerate(self._processes):
            rank, code = first_rank(len(self._processes)) + index, process.exitcode
            if code is None or self._heartbeats.said(index):
                continue  # its end is recorded; gloo's threads may still abort a rank that is ending
            code = first_signal(code, self._stack(index))
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            if code >= 0:
                how += f" ({self._heartbeats.place(index)}), without an error record"
                how += " (see docs/troubleshooting.md#no-error-record)"
            message = f"rank {rank} {how}{LIKELY.get(-code, '')}"
            self._record(directory, rank, message, first=True, stack=self._stack(index))
            return

    def _record(self, directory: Path, rank: int, message: str, **more: Any) -> bool:
        """Record a failure, and notify the running ranks on all hosts. Return True if it is the first record."""
        recorded = record_failure(directory, rank, RankLost(message), **more)
        if recorded:
            tell_failed(rank, self._env)
        return recorded

    def _let_end(self, directory: Path) -> None:
        end = time.monotonic() + LAST_S
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        self._record_death(directory)  # again, because a killed process may be reaped after other ranks have failed
        self._end_hung(directory, [i for i, process in enumerate(self._processes) if process.is_alive()])


@contextmanager
def store_file(forked: bool) -> Iterator[str]:
    """Yield the path of the FileStore's file for ranks started in this block. For forked ranks it is in memory (memfd),
    so no file can be left behind."""
    if forked and hasattr(os, "memfd_create"):
        store = os.memfd_create("engine-store")
        try:
            yield f"/proc/self/fd/{store}"
        finally:
            os.close(store)
    else:
        with temporary_folder("engine-") as folder:
            yield str(folder / "store")


def _rank_main(
    index: int, stack: Any, target: Callable[[Path], None], directory: Path, count: int, store: str, parent: int,
    terminal: bool, heartbeats: Any, offsets: Offsets,
) -> None:  # fmt: skip
    die_with(parent)
    register_heartbeat(heartbeats, index)
    os.set_blocking(stack.fileno(), False)
    faulthandler.enable(file=stack.fileno())  # writes the stack trace if native code crashes or hangs
    early_signals.begin_run(own_process=True)
    for number in heeded_signals():  # signals are blocked (held_signals) until the run handles them
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(rank_environment(index, count, store), LAB_PARENT=str(parent))
    if terminal:
        _share_terminal(int(os.environ["RANK"]))
    try:
        own_offsets(offsets)  # separate file positions for files that a user's module opened on import
        target(directory)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if read_failure(directory) is None:  # the record could not be written, e.g. the disk is full
            at, shown = getattr(error, "failed_at", time.monotonic()), ""
            if not isinstance(error, (ConfigError, RunFailed)):
                shown = "".join(traceback.format_exception(error))
            with suppress(OSError):
                os.write(stack.fileno(), f"{_UNRECORDED}{at} {one_line(error)}\n{shown}".encode())
        raise SystemExit(1) from None
    finally:
        mark_finished()
        early_signals.ignore_signals()


def _share_terminal(rank: int) -> None:
    """Connect rank 0 to its parent's terminal for breakpoints, because multiprocessing gives children /dev/null. The
    other ranks skip breakpoints and wait for rank 0 at the next collective."""
    if rank == 0:
        with suppress(OSError):  # no controlling terminal
            fd = os.open("/dev/tty", os.O_RDWR)
            os.dup2(fd, 0)
            os.close(fd)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open
        return

    import pdb

    def passed_over(*rest: Any, **more: Any) -> None:
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        print(f"rank {rank}: breakpoint at {place} skipped, because rank 0 has the terminal", file=sys.stderr)

    sys.breakpointhook = passed_over
    pdb.set_trace = passed_over
