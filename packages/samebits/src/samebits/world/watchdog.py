"""Hang watchdog: ends a run without progress for process.timeout and names the stuck rank with its stack.

    main thread   beat("step", 12) ... beat("saving", 12) ...       reports that it makes progress
    watch thread  every half second: progress within process.timeout? another rank died, failed, stuck (board.py)?

Most ranks of a hung run wait in a collective for one rank that does not reach it. Each rank reports its position to the
store; a rank that is not in a collective is the cause. A rank without a report is stopped by a signal, or its native
code holds the GIL, so none of its Python threads can run and another process must end it. The table lists which process
ends a hung process and what is recorded. T is process.timeout, or SLOW_TIMEOUTS or USER_TIMEOUTS times that, after its
last progress:

| started by      | Python, or C without the GIL | C that holds the GIL            | SIGSTOP                          |
|-----------------|------------------------------|---------------------------------|----------------------------------|
| a plain command | its watch thread, T:         | timer.py, T + 3 s:              | nobody: it may be continued, and |
| (one process)   | failed, its stack            | stacks on stderr, no record     | the time does not count          |
|                 |                              | (reports show it as killed)     |                                  |
| launch.py: ranks| their watch threads, T:      | the launcher, T + 1 s: failed,  | the launcher, T + 1 s: failed,   |
|                 | failed, the rank, its stack  | the rank, faulthandler's stack  | the rank, faulthandler's stack   |
| torchrun, srun  | as with launch.py            | the other ranks end, T + 5 s:   | the other ranks end, T + 5 s:    |
|                 |                              | failed, the rank, no stack; the | failed, the rank, no stack; its  |
|                 |                              | rank: timer.py, T + 13 s        | launcher must kill the rank      |
| a sweep's pool  | its watch thread, T:         | the pool, T + 1 s: failed,      | the pool, T + 1 s: failed,       |
|                 | failed, its stack            | faulthandler's stack            | faulthandler's stack             |

A rank on another host, or behind a broken connection, is treated like a rank of torchrun. If all ranks of torchrun hold
the GIL, each is ended by its timer, without a record. (Tests: test_hang.py, test_kill.py; test_hosts.py for hosts.)
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from samebits.children import beat, has_starter, mark_finished, note_step, progress_at
from samebits.errors import RankLost
from samebits.status import read_failure, record_failure, resume_hint
from samebits.world import collectives, group, stop, store, timer
from samebits.world.board import FAILED, STUCK, Board, tell_failed
from samebits.world.environment import dist_env

POLL_S = 0.5
GATHER_S = 5.0  # seconds for all ranks to report their positions after one has noticed a hang
GRACE_S = 5.0  # seconds for the main thread to end after another rank has failed
LOST_S = 30.0  # the same after the store has ended: at the end of a run, rank 0, which may host it, may exit first
INNERMOST = 12  # number of innermost stack frames to show
LISTED = 8  # maximum number of ranks in a message
OWN = (collectives.__file__, group.__file__, stop.__file__, store.__file__)
WAITS_IN = ("torch/distributed/", "torch/autograd/graph.py", *OWN)  # files in which a rank waits
HELD = (
    "no progress for process.timeout, because native code holds the interpreter - see "
    "docs/troubleshooting.md#native-code-holds-the-interpreter"
)
DEBUGGERS = ("pdb", "bdb", "pydevd", "_pydevd_bundle", "IPython", "code", "ipdb", "pudb", "debugpy")


class Mark(NamedTuple):  # which is made twice as fast as a frozen dataclass, in each step
    """The last progress of the main thread. at: time.monotonic() in seconds. doing: its work since then. limit: in
    multiples of the timeout."""

    at: float
    doing: str
    step: int
    limit: float


class HangWatchdog:
    """The watchdog of one rank. timeout_s: limit without progress in seconds; None: no limit."""

    SLOW_TIMEOUTS = 3  # multiples of the timeout for the start, the first step (it may compile) and a save
    USER_TIMEOUTS = 36  # multiples of the timeout for a callback

    def __init__(self, run_dir: Path, rank: int, size: int, timeout_s: float | None) -> None:
        self.run_dir, self.rank, self.size = run_dir, rank, size
        self.timeout_s = timeout_s
        self.before_end: Callable[[], object] = lambda: None  # called before the thread ends this process
        self.dead_peers: Callable[[], list[int]] = list
        self._board = Board(os.environ)
        self._mark = Mark(time.monotonic(), "start", 0, self.SLOW_TIMEOUTS)
        self._main = threading.current_thread()
        self._outer = len(list(callers(sys._getframe(1))))  # number of stack frames in which the run was started
        self._over = threading.Event()
        self._failed_at: float | None = None
        self._announced = -math.inf  # Mark.at of the last progress whose limit was printed
        self._acted_at = -math.inf  # when a callback was last seen at work, not waiting for other ranks
        self._needs_timer = timeout_s is not None and not has_starter()

    def beat(self, doing: str, step: int, slow: bool = False) -> None:
        """Report progress: the main thread calls this when it begins a step, an evaluation batch or a save.

        If the next call does not follow within the timeout, the run hangs. doing: the work that follows, for messages.
        slow: it may take SLOW_TIMEOUTS times as long."""
        self._mark = Mark(time.monotonic(), doing, step, self.SLOW_TIMEOUTS if slow else 1)
        note_step(doing, step)

    def latest(self) -> Mark:
        """Return the last progress of the main thread."""
        mark = self._mark
        return mark._replace(at=max(mark.at, progress_at()))

    @contextmanager
    def user_code(self, name: str, step: int) -> Iterator[None]:
        """Allow USER_TIMEOUTS times the timeout within the block, for a callback (sampling, an upload). Ranks that wait
        for it do not count as hung."""
        before = self._mark
        self._mark = Mark(time.monotonic(), name, step, self.USER_TIMEOUTS)
        note_step(name, step)
        try:
            yield
        finally:
            self._mark = before._replace(at=time.monotonic(), step=step)
            note_step(before.doing, step)

    @contextmanager
    def running(self) -> Iterator[HangWatchdog]:
        """Run the watch thread within the block."""
        if self.timeout_s is None and self.size == 1:
            self._send_heartbeat(1)
            yield self
            return
        thread = threading.Thread(target=timer.saying(HELD, self._work), name="watch", daemon=True)
        with timer.last_resort() if self._needs_timer else nullcontext():
            thread.start()
            try:
                yield self
            finally:
                self._over.set()
                thread.join()
                self._send_heartbeat(self.SLOW_TIMEOUTS)  # allows time for the teardown

    def _send_heartbeat(self, limit: float) -> None:
        """Send a heartbeat to the parent or, without a parent, rearm the timer."""
        limit_s = None if self.timeout_s is None else limit * self.timeout_s
        beat(limit_s)
        if self._needs_timer and limit_s is not None:
            timer.rearm(limit_s + (0 if self.size == 1 else 2 * GATHER_S))  # leaves time for other ranks to record it

    def _work(self) -> None:
        seen = time.monotonic()
        self._send_heartbeat(self._mark.limit)
        while not self._over.wait(POLL_S):
            now = time.monotonic()
            mark = self.latest()
            self._send_heartbeat(mark.limit)
            if now - seen > 10 * POLL_S:  # the process was stopped (Ctrl-Z): that time does not count
                self._mark = mark._replace(at=mark.at + now - seen)
            else:
                with suppress(OSError, ValueError, RuntimeError):  # of a shared file system, or ulimit -u; try again
                    if self.timeout_s is not None and self._is_overdue(mark, now - mark.at, self.timeout_s):
                        self._stands_still(mark)
                    elif self.size > 1:
                        self._look_at_the_others(now)
            seen = time.monotonic()

    def _is_overdue(self, mark: Mark, idle_s: float, timeout_s: float) -> bool:
        """Return True after the limit of `mark`. Announce a limit above one timeout when that timeout has passed, not
        if this rank waits for others."""
        if mark.limit == 1:  # a step
            return idle_s > timeout_s
        waiting = self.size > 1 and waits(self._frame())
        if idle_s > timeout_s and self._announced != mark.at and not waiting:
            self._announced = mark.at
            print(
                f"rank {self.rank}: no progress for {timeout_s:g} s ({mark.doing}, at step {mark.step}); the limit is "
                f"{mark.limit * timeout_s:g} s ({mark.limit:g} x process.timeout)",
                file=sys.stderr,
            )
        if mark.limit > self.SLOW_TIMEOUTS:
            now = time.monotonic()
            if not waiting:
                self._acted_at = now
            elif now - max(mark.at, self._acted_at) > timeout_s * self.SLOW_TIMEOUTS:
                return True  # all ranks may wait for each other
        return idle_s > timeout_s * mark.limit

    def _look_at_the_others(self, now: float) -> None:
        if self._failed_at is None:
            seen = self._board.look(self.rank)
            if seen == FAILED or self.dead_peers():
                self._failed_at = now
            elif seen == STUCK:
                report, stack = self._position()
                self._board.say_where(self.rank, asdict(report), stack)
        grace_s = LOST_S if self._board.lost else GRACE_S
        if self._failed_at is not None and min(now - self._failed_at, now - self._mark.at) > grace_s:
            self.record_dead_peers()  # this rank is stuck in a collective
            if self._board.lost:
                self._fail(0, "rank 0, or torchrun, has ended: it does not answer at MASTER_ADDR any more", "")
            self._end()

    def record_dead_peers(self) -> None:
        """Record ranks of this machine that were killed, if there is no launcher that does (torchrun, srun)."""
        if read_failure(self.run_dir) is None:
            time.sleep(0.1)  # a dying process closes its connections shortly before it ends
            dead = self.dead_peers()
            # a rank that cannot write its record (full disk, removed directory) still tells the others
            told = bool(dead) and self._board.look(self.rank) == FAILED and not self._board.lost
            for rank in [] if told else dead:
                self._fail(rank, f"rank {rank} has died (killed from outside, or by the kernel as memory ran out)", "")

    def _frame(self) -> FrameType | None:
        # if the main thread waits for another thread, use that one (samebits.checkpoints.background)
        where = next((thread for thread in threading.enumerate() if getattr(thread, "awaited", False)), self._main)
        return sys._current_frames().get(where.ident or 0)

    def _position(self) -> tuple[Report, str]:
        """Return the position of the main thread and its stack trace."""
        mark, frame = self.latest(), self._frame()
        # a callback may train for hours: it has waited only since it was last seen at work
        since = max(mark.at, self._acted_at) if waits(frame) else mark.at
        idle_s = 0.0 if in_debugger(self._main, self._outer) else time.monotonic() - since
        report = Report(
            self.rank, idle_s, mark.limit * (self.timeout_s or math.inf), mark.step,
            place=f"{mark.doing}, at step {mark.step}",
            waits=waits(frame), in_torch=frame is not None and "/torch/" in frame.f_code.co_filename,
        )  # fmt: skip
        return report, "".join(traceback.format_stack(frame, limit=INNERMOST)) if frame else ""

    def _stands_still(self, mark: Mark) -> None:
        assert self.timeout_s is not None
        if in_debugger(self._main, self._outer):
            self._mark = mark._replace(at=time.monotonic())
            return
        own, own_stack = self._position()
        reports = [own]
        if self.size > 1:
            self._board.say_where(self.rank, asdict(own), own_stack)
            until = time.monotonic() + GATHER_S
            while len(reports) < self.size and time.monotonic() < until:
                if self._over.wait(POLL_S):
                    return
                self._send_heartbeat(mark.limit)
                # not this rank's report in the store, which may be of a time before its limit
                others = [Report(**found) for found in self._board.reports() if found["rank"] != self.rank]
                reports = [own, *others]
        found = verdict(reports, self.size, self.timeout_s)
        if found is None:
            if self.size > 1:
                self._board.end_round()
            self._mark = self._mark._replace(at=time.monotonic())
            return
        rank, message = found
        stack = own_stack if rank == self.rank else self._board.stack(rank) if rank in {r.rank for r in reports} else ""
        self._fail(rank, message, f"rank {rank} stands here:\n{stack}" if stack else "")
        self._end()

    def _fail(self, rank: int, message: str, stack: str) -> None:
        recorded = record_failure(self.run_dir, rank, RankLost(message), stack=stack)
        told_by_start = self.rank == 0 and threading.current_thread() is self._main  # see process.parent.first_failure
        if recorded:
            mark_finished()
            tell_failed(rank, os.environ)
        if recorded and not told_by_start and not dist_env.has_parent:
            print(f"{stack}failed: {message}{resume_hint(self.run_dir)}", file=sys.stderr)

    def _end(self) -> None:
        """End the process from this thread, because the main thread cannot be interrupted."""
        mark_finished()
        timer.disarm()
        self.before_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def in_debugger(thread: threading.Thread, outer: int) -> bool:
    """Return True if a debugger's prompt is open within the run. The `outer` frames in which the run was started do not
    count, because an IDE or a notebook may have started it."""
    modules = [frame.f_globals.get("__name__", "") for frame in callers(sys._current_frames().get(thread.ident or 0))]
    return any(name.partition(".")[0] in DEBUGGERS for name in modules[: len(modules) - outer])


def waits(frame: FrameType | None) -> bool:
    """Return True if the frame is of a call that waits for other ranks, or for the device."""
    return frame is not None and any(part in frame.f_code.co_filename for part in WAITS_IN)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@dataclass(frozen=True)
class Report:
    """The position of a rank without progress. waits: it waits for other ranks, or for the device, which may wait for
    them. in_torch: it is in another function of torch, which may wait internally (a full queue of kernels)."""

    rank: int
    idle_s: float
    limit_s: float
    step: int
    place: str
    waits: bool
    in_torch: bool


def verdict(reports: list[Report], size: int, timeout_s: float) -> tuple[int, str] | None:
    """Return (rank, message) of the rank that the others wait for; None if it makes progress, but slowly.

    | the reports                            | verdict                                                               |
    |----------------------------------------|-----------------------------------------------------------------------|
    | some ranks do not wait for others:     |                                                                       |
    |   none of these is beyond its limit    | None: they are slow, or in a callback, and the others wait for them   |
    |   one is beyond its limit              | of these, if beyond half of their limit: the one with the fewest      |
    |                                        | steps, then one in its own code rather than torch's, then the longest |
    | all wait, and some ranks report nothing| the first that reports nothing                                        |
    | all ranks wait:                        |                                                                       |
    |   one for less than half of timeout_s  | None: it has only just arrived                                        |
    |   each for longer                      | the one with the fewest steps, then the longest                       |
    """
    acting = sorted((r for r in reports if not r.waits), key=lambda r: (r.step, r.in_torch, -r.idle_s))
    missing = sorted(set(range(size)) - {report.rank for report in reports})
    if not acting and missing:
        return missing[0], (
            f"rank {missing[0]} hung: the others waited for it for {timeout_s:g} s (process.timeout; "
            f"{reports[0].place}); it is stopped, or native code holds its interpreter: see "
            "docs/troubleshooting.md#rank-hung"
        )
    if acting:
        if all(report.idle_s < report.limit_s for report in acting):
            return None
        first = next(report for report in acting if report.idle_s > report.limit_s / 2)
    else:
        if any(report.idle_s < timeout_s / 2 for report in reports):
            return None
        first = min(reports, key=lambda r: (r.step, -r.idle_s))
    limit_s = first.limit_s if acting else timeout_s
    times = "" if limit_s == timeout_s else f"{limit_s / timeout_s:g} x "
    message = f"rank {first.rank} hung: it did not move for {limit_s:g} s ({times}process.timeout; {first.place})"
    if not acting and size > 1:
        places = ", ".join(f"rank {report.rank} in {report.place}" for report in reports[:LISTED])
        message += f"; all ranks wait for each other or for the device: {places}"
    return first.rank, f"{message}; see docs/troubleshooting.md#rank-hung"
