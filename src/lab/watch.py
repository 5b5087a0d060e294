"""A run that no longer moves ends, and says which rank stood still and where.

    main thread   beat("step", 12) ... beat("saving", 12) ...
    watch thread  now and then: has this rank moved within trainer.timeout? has another rank failed, or died?

Of ranks that stand still, most only wait for one that does not come: each writes down where it stands, and those that
do not stand in a collective are the cause. A rank that wrote nothing is stopped, or something holds its interpreter.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lab import directory, distributed
from lab.errors import RankLost

POLL_S = 0.5
GATHER_S = 2.0  # ranks find out within this of each other that nothing moves
GRACE_S = 5.0  # for the main thread to end by itself after another rank has failed
INNERMOST = 12  # frames of a stack that are shown
SLOW = 3  # what may take so many times the timeout: the start, the first step (it may compile), a save
WAITS_IN = ("torch/distributed/", "torch/autograd/graph.py", "lab/distributed.py")  # innermost frame of one who waits
DEBUGGERS = ("pdb", "bdb", "pydevd", "_pydevd_bundle")


class Watch:
    """One for each rank. timeout_s: None: a run may stand still for ever."""

    def __init__(self, run_dir: Path, rank: int, size: int, timeout_s: float | None) -> None:
        self.run_dir, self.rank, self.size = run_dir, rank, size
        self.timeout_s = timeout_s
        self._folder = run_dir / directory.STUCK
        self.before_end: Callable[[], object] = lambda: None  # called before this process is ended from the thread
        self.dead_peers: Callable[[], list[int]] = list
        self._mark: tuple[float, str, int, bool] = (time.monotonic(), "start", 0, True)
        self._main = threading.current_thread()
        self._over = threading.Event()
        self._failed_at: float | None = None

    def beat(self, doing: str, step: int, slow: bool = False) -> None:
        """Something was done; what comes next is `doing`."""
        self._mark = (time.monotonic(), doing, step, slow)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        if self.timeout_s is None and self.size == 1:
            yield self
            return
        thread = threading.Thread(target=self._work, name="watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        seen = time.monotonic()
        while not self._over.wait(POLL_S):
            now = time.monotonic()
            since, doing, step, slow = self._mark
            if now - seen > 10 * POLL_S:  # the process itself was stopped (Ctrl-Z): not its fault
                self._mark = (since + now - seen, doing, step, slow)
            else:
                with suppress(OSError, ValueError):  # of a shared file system; anew in half a second
                    if self.timeout_s is not None and now - since > self.timeout_s * (SLOW if slow else 1):
                        self._stands_still()
                    elif self.size > 1:
                        self._look_at_the_others(now)
            seen = time.monotonic()

    def _look_at_the_others(self, now: float) -> None:
        if self._folder.exists():
            self._report()
        if self._failed_at is None:
            record = directory.failure(self.run_dir)
            if (record is not None and record["rank"] != self.rank) or self.dead_peers():
                self._failed_at = now
        elif now - self._failed_at > GRACE_S and now - self._mark[0] > GRACE_S:  # stuck in a collective
            self.record_dead_peers()
            self._end()

    def record_dead_peers(self) -> None:
        """For ranks that nobody here is the parent of (torchrun, srun): one that a signal killed could not say so."""
        if directory.failure(self.run_dir) is None:
            time.sleep(0.1)  # it closes its connections a moment before it is gone
            for rank in self.dead_peers():
                self._fail(rank, f"rank {rank} has died (killed from outside, or by the kernel as memory ran out)", "")

    def _report(self) -> None:
        """Write down where the main thread stands."""
        file = self._folder / f"rank_{self.rank}.json"
        if file.exists():
            return
        since, doing, step, _ = self._mark
        frame = sys._current_frames().get(self._main.ident or 0)
        stack = "".join(traceback.format_stack(frame, limit=INNERMOST)) if frame else ""
        waits = frame is not None and any(part in frame.f_code.co_filename for part in WAITS_IN)
        place = f"{doing}, at step {step}"
        report = {"rank": self.rank, "idle_s": time.monotonic() - since, "place": place, "waits": waits, "stack": stack}
        with suppress(OSError):  # another rank may have found that all is well, and removed the folder
            directory.write_json(file, report)

    def _stands_still(self) -> None:
        assert self.timeout_s is not None
        if in_debugger(self._main):
            self.beat(*self._mark[1:])
            return
        self._folder.mkdir(exist_ok=True)
        self._report()
        if self._over.wait(GATHER_S if self.size > 1 else 0.0):
            return
        reports = [directory.read_json(file) for file in sorted(self._folder.glob("rank_*.json"))]
        found = verdict(reports, self.size, self.timeout_s)
        if found is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.beat(*self._mark[1:])
            return
        self._fail(*found)
        self._end()

    def _fail(self, rank: int, message: str, stack: str) -> None:
        recorded = directory.record_failure(self.run_dir, rank, RankLost(message), stack=stack)
        told_by_start = self.rank == 0 and threading.current_thread() is self._main  # see start.first_failure
        if recorded and not told_by_start and not distributed.has_parent():
            print(f"{stack}failed: {message}", file=sys.stderr)

    def _end(self) -> None:
        """The main thread is beyond reach."""
        self.before_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def in_debugger(thread: threading.Thread) -> bool:
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def verdict(reports: list[dict[str, Any]], size: int, timeout_s: float) -> tuple[int, str, str] | None:
    """(rank, message, its stack) of the one that the others wait for; None: it moves, only slower than the others."""
    if not reports:
        return None
    stuck = sorted((r for r in reports if not r["waits"]), key=lambda r: -r["idle_s"])
    missing = sorted(set(range(size)) - {report["rank"] for report in reports})
    if not stuck and missing:
        message = (
            f"rank {missing[0]} hung: the others waited for it for {timeout_s:g} s (trainer.timeout; "
            f"{reports[0]['place']}); it is stopped, or native code holds its interpreter"
        )
        return missing[0], message, ""
    first = (stuck or reports)[0]
    if first["idle_s"] < timeout_s:
        return None
    message = f"rank {first['rank']} hung: it did not move for {timeout_s:g} s (trainer.timeout; {first['place']})"
    return first["rank"], message, f"rank {first['rank']} stands here:\n{first['stack']}"
