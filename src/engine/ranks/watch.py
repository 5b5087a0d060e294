"""Hang watchdog: ends a run without progress for process.timeout and names the stuck rank with its stack.

    main thread   beat("step", 12) ... beat("saving", 12) ...
    watch thread  every half second: progress within process.timeout? has another rank died, or (lookout.py) failed?

Most ranks of a hung run only wait in a collective for the one that does not come. Each writes down its stack, and a
rank that is not in a collective is the cause. A rank that wrote nothing is stopped, or native code holds its GIL: then
no thread of it can report, and its parent (heartbeat.py) or its guard (guard.py) does.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from engine.errors import RankLost
from engine.files import read_json, write_json
from engine.host import beat, has_starter, note_step, progress_at, say_ended
from engine.ranks import distributed
from engine.ranks.guard import Guard
from engine.ranks.lookout import POLL_S, Lookout
from engine.runs import STUCK, read_failure, record_failure

GATHER_S = 2.0  # ranks notice a hang within this of each other, where they look often enough
GRACE_S = 5.0  # for the main thread to end by itself after another rank has failed
INNERMOST = 12  # innermost stack frames that are shown
USER_TIMEOUTS = 36  # a callback may take so many times the timeout
LISTED = 8  # most ranks that a message lists
SLOW_TIMEOUTS = 3  # the start, the first step (it may compile) and a save may take so many times the timeout
WAITS_IN = ("torch/distributed/", "torch/autograd/graph.py", distributed.__file__)  # files a rank waits in
DEBUGGERS = ("pdb", "bdb", "pydevd", "_pydevd_bundle", "IPython", "code", "ipdb", "pudb", "debugpy")


@dataclass(frozen=True)
class Mark:
    """Last progress of the main thread. at: time.monotonic(), in s; doing: its work since then; limit: in timeouts."""

    at: float
    doing: str
    step: int
    limit: float


class Watch:
    """The watchdog of one rank. timeout_s: None: no limit on a run without progress."""

    def __init__(self, run_dir: Path, rank: int, size: int, timeout_s: float | None) -> None:
        self.run_dir, self.rank, self.size = run_dir, rank, size
        self.timeout_s = timeout_s
        self._folder = run_dir / STUCK
        self._lookout = Lookout(run_dir, size, distributed.local_rank(), distributed.local_ranks())
        self.before_end: Callable[[], object] = lambda: None  # called before this process is ended from the thread
        self.dead_peers: Callable[[], list[int]] = list
        self._mark = Mark(time.monotonic(), "start", 0, SLOW_TIMEOUTS)
        self._main = threading.current_thread()
        self._outer = len(list(callers(sys._getframe(1))))  # frames in which the run began
        self._over = threading.Event()
        self._failed_at: float | None = None
        self._guard: Guard | None = None

    def beat(self, doing: str, step: int, slow: bool = False) -> None:
        """Progress was made; `doing` comes next. slow: it may take SLOW_TIMEOUTS times as long."""
        self._mark = Mark(time.monotonic(), doing, step, SLOW_TIMEOUTS if slow else 1)
        note_step(doing, step)

    def latest(self) -> Mark:
        """What the main thread does, and since when."""
        mark = self._mark
        return replace(mark, at=max(mark.at, progress_at()))

    @contextmanager
    def user_code(self, name: str, step: int) -> Iterator[None]:
        """A callback may take USER_TIMEOUTS times as long (sampling, an upload); ranks that wait are not hung."""
        before = self._mark
        self._mark = Mark(time.monotonic(), name, step, USER_TIMEOUTS)
        note_step(name, step)
        try:
            yield
        finally:
            self._mark = replace(before, at=time.monotonic(), step=step)
            note_step(before.doing, step)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        if self.timeout_s is None and self.size == 1:
            self._tell(1)
            yield self
            return
        if self.timeout_s is not None and not has_starter():
            self._guard = Guard(self.run_dir, self.rank)
        thread = threading.Thread(target=self._work, name="watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._lookout.calm()
            self._tell(SLOW_TIMEOUTS)  # time for the teardown
            if self._guard is not None:
                self._guard.close()

    def _tell(self, limit: float) -> None:
        """Beat for the observers outside of this process (parent, guard)."""
        limit_s = None if self.timeout_s is None else limit * self.timeout_s
        beat(limit_s)
        if self._guard is not None:
            self._guard.wind(limit_s)

    def _work(self) -> None:
        seen = time.monotonic()
        self._tell(self._mark.limit)
        while not self._over.wait(POLL_S):
            now = time.monotonic()
            mark = self.latest()
            self._tell(mark.limit)
            if now - seen > 10 * POLL_S:  # the process was stopped meanwhile (Ctrl-Z): that time does not count
                self._mark = replace(mark, at=mark.at + now - seen)
            else:
                with suppress(OSError, ValueError):  # a shared file system's; tried again after POLL_S
                    if self.timeout_s is not None and now - mark.at > self.timeout_s * mark.limit:
                        self._stands_still(mark)
                    elif self.size > 1:
                        self._look_at_the_others(now)
            seen = time.monotonic()

    def _look_at_the_others(self, now: float) -> None:
        if self._failed_at is None and self.dead_peers():
            self._failed_at = now
        if self._failed_at is None and self._lookout.due(now):
            record = read_failure(self.run_dir)
            if record is not None and record["rank"] != self.rank:
                self._failed_at = now
            stuck = self._folder.exists()
            if stuck:
                self._report()
            if stuck or record is not None:
                self._lookout.alarm()
            else:
                self._lookout.calm()
        if self._failed_at is not None and now - self._failed_at > GRACE_S and now - self._mark.at > GRACE_S:
            self.record_dead_peers()  # stuck in a collective
            self._end()

    def record_dead_peers(self) -> None:
        """Record ranks of this machine that were killed, where no parent of ours does (torchrun, srun)."""
        if read_failure(self.run_dir) is None:
            time.sleep(0.1)  # a dying process closes its connections a moment before it is gone
            for rank in self.dead_peers():
                self._fail(rank, f"rank {rank} has died (killed from outside, or by the kernel as memory ran out)", "")

    def _report(self) -> None:
        """Write the main thread's position and stack to the folder of stuck ranks."""
        file = self._folder / f"rank_{self.rank}.json"
        if file.exists():
            return
        # a thread that the main thread waits for stands there in its place (engine.checkpoints.background)
        where = next((thread for thread in threading.enumerate() if getattr(thread, "awaited", False)), self._main)
        mark, frame = self.latest(), sys._current_frames().get(where.ident or 0)
        file_name = frame.f_code.co_filename if frame else ""
        idle_s = 0.0 if in_debugger(self._main, self._outer) else time.monotonic() - mark.at
        report = Report(
            self.rank, idle_s, mark.limit * (self.timeout_s or math.inf), mark.step,
            place=f"{mark.doing}, at step {mark.step}",
            waits=any(part in file_name for part in WAITS_IN), in_torch="/torch/" in file_name,
            stack="".join(traceback.format_stack(frame, limit=INNERMOST)) if frame else "",
        )  # fmt: skip
        with suppress(OSError):  # another rank may have seen progress, and removed the folder
            write_json(file, asdict(report))

    def _stands_still(self, mark: Mark) -> None:
        assert self.timeout_s is not None
        if in_debugger(self._main, self._outer):
            self._mark = replace(mark, at=time.monotonic())
            return
        self._folder.mkdir(exist_ok=True)
        self._report()
        self._lookout.alarm()
        until = time.monotonic() + GATHER_S + self._lookout.slowest_s
        while (files := sorted(self._folder.glob("rank_*.json"))) and len(files) < self.size:
            if self._over.wait(POLL_S):
                return
            self._tell(mark.limit)
            if time.monotonic() > until:
                break
        reports = [Report(**read_json(file)) for file in files]
        found = verdict(reports, self.size, self.timeout_s)
        if found is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._mark = replace(self._mark, at=time.monotonic())
            return
        self._fail(*found)
        self._end()

    def _fail(self, rank: int, message: str, stack: str) -> None:
        recorded = record_failure(self.run_dir, rank, RankLost(message), stack=stack)
        told_by_start = self.rank == 0 and threading.current_thread() is self._main  # see start.first_failure
        if recorded and not told_by_start and not distributed.has_parent():
            print(f"{stack}failed: {message}", file=sys.stderr)

    def _end(self) -> None:
        """End the process from this thread: the main thread cannot be interrupted."""
        say_ended()
        self._lookout.calm()
        if self._guard is not None:
            self._guard.let_go()
        self.before_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def in_debugger(thread: threading.Thread, outer: int) -> bool:
    """Whether a debugger's prompt is open within the run: the `outer` frames in which the run began do not count, as
    those of an IDE or a notebook that started it."""
    modules = [frame.f_globals.get("__name__", "") for frame in callers(sys._current_frames().get(thread.ident or 0))]
    return any(name.partition(".")[0] in DEBUGGERS for name in modules[: len(modules) - outer])


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@dataclass(frozen=True)
class Report:
    """Position of a rank without progress. waits: for other ranks, or for the device, which waits for them. in_torch:
    in another function of torch, which may wait unseen (a full queue of kernels)."""

    rank: int
    idle_s: float
    limit_s: float
    step: int
    place: str
    waits: bool
    in_torch: bool
    stack: str


def verdict(reports: list[Report], size: int, timeout_s: float) -> tuple[int, str, str] | None:
    """(rank, message, stack) of the rank that the others wait for; None: it makes progress, only more slowly.

    Of several that wait for nobody: the one with the fewest steps, then one in its own code rather than torch's.
    """
    if not reports:
        return None
    acting = sorted((r for r in reports if not r.waits), key=lambda r: (r.step, r.in_torch, -r.idle_s))
    missing = sorted(set(range(size)) - {report.rank for report in reports})
    if not acting and missing:
        message = (
            f"rank {missing[0]} hung: the others waited for it for {timeout_s:g} s (process.timeout; "
            f"{reports[0].place}); it is stopped, or native code holds its interpreter"
        )
        return missing[0], message, ""
    if acting:
        if all(report.idle_s < report.limit_s for report in acting):
            return None
        first = next(report for report in acting if report.idle_s > report.limit_s / 2)
    else:
        first = min(reports, key=lambda r: (r.step, -r.idle_s))
        if any(report.idle_s < timeout_s / 2 for report in reports):  # one has only just arrived
            return None
    message = f"rank {first.rank} hung: it did not move for {timeout_s:g} s (process.timeout; {first.place})"
    if not acting and size > 1:
        message += "; all ranks wait for each other or for the device: " + ", ".join(
            f"rank {report.rank} in {report.place}" for report in reports[:LISTED]
        )
    return first.rank, message, f"rank {first.rank} stands here:\n{first.stack}"
