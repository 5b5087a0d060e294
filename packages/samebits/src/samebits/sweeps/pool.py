"""The pool: run several jobs at once on this machine (hydra/launcher=pool). Each has its own process group and is
forked from a parent that has imported torch once, and has neither called CUDA nor started threads.

    jobs -> lease GPUs and cores -> fork -> samebits.sweeps.job.run_job(directory) -> its state -> the next

The job's process, not the parent, holds the lock of its run directory, and the kernel releases it when the job ends.
If the parent dies, the kernel kills the jobs; if a job dies, its ranks are killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from samebits.children import Heartbeats, abort_hung, exited
from samebits.errors import ConfigError, DirectoryLockedError, RankLost
from samebits.host import start_method
from samebits.runs import claimed
from samebits.signals import held_signals
from samebits.status import record_failure
from samebits.sweeps.job import ELSEWHERE
from samebits.sweeps.job_process import DYING_S, FAULT, death, job_main, record_unexplained
from samebits.sweeps.launching import Launch
from samebits.sweeps.lease import Lease, Leases
from samebits.sweeps.ledger import Job, is_due
from samebits.sweeps.options import PoolConfig

if TYPE_CHECKING:
    from samebits.sweeps.drive import Work

TICK_S = 0.5


@dataclass(frozen=True)
class Running:
    """A running job, its process and its lease."""

    job: Job
    process: Any
    lease: Lease
    heartbeats: Heartbeats
    began: float
    hung: list[str] = field(default_factory=list)  # the reason, if it was killed because it hung


@dataclass(frozen=True)
class Ended:
    """A job whose process has ended. Its ranks may still be dying. record: returns False if they are."""

    running: Running
    record: Callable[[], bool]
    until: float = field(default_factory=lambda: time.monotonic() + DYING_S)


class Pool(Launch):
    """The pool. It also waits for jobs that another process runs for the same sweep."""

    def __init__(self, work: Work, leases: Leases) -> None:
        super().__init__(work, leases.at_once)
        self._leases = leases
        self._running: dict[int, Running] = {}
        self._ends: list[Ended] = []  # not recorded yet
        # run by another process; monotonic time since which nobody holds the lock
        self._elsewhere: dict[str, tuple[Job, float]] = {}

    def _run(self) -> None:
        waiting: list[Job] = []
        source = iter(self._work.jobs)
        try:
            while True:
                self._look_elsewhere(waiting)
                self._fill(waiting, source)
                if not (self._running or self._ends) and (self._ending or not (waiting or self._elsewhere)):
                    return
                if not self._running:
                    time.sleep(TICK_S)
                self._end_hung()
                for process in exited([running.process for running in self._running.values()], TICK_S):
                    self._ended(self._running.pop(process.sentinel))
                self._record_ends()
        finally:
            self._kill()  # jobs are left here only after an exception

    def _fill(self, waiting: list[Job], source: Iterator[Job]) -> None:
        """Start jobs while a slot is free."""
        while not self._ending:
            if not waiting:
                if len(self._running) >= self._leases.at_once or (job := next(source, None)) is None:
                    return
                waiting.append(job)
            job = waiting[0]
            if job.claimed():
                self._elsewhere[job.key] = job, float("inf")
            elif not is_due(job.state(), self._work.options.retry_failed):  # another process has run it in the meantime
                self._tell(job, None)
            elif not self._begin(job):
                return
            waiting.pop(0)

    def _begin(self, job: Job) -> bool:
        """Start the job. Return False if no GPU or slot is free yet; True if it has started or its failure is
        recorded."""
        try:
            lease = self._leases.take(self._work.ledger.project, job.directory)
        except ConfigError as error:  # it needs more GPUs than there are
            with contextlib.suppress(DirectoryLockedError), claimed(job.directory):
                record_failure(job.directory, 0, error, first=True)
            self._tell(job, 0.0)
            return True
        if lease is None:
            return False
        self._screen.start(job)
        context: Any = multiprocessing.get_context(start_method())
        heartbeats = Heartbeats(context, 1)
        quiet = self._leases.at_once > 1
        given = (job.directory, lease.environment(), quiet, os.getpid(), heartbeats.shared)
        with held_signals():  # no signal arrives before the job is in _running and has its own handlers
            if self._ending:
                self._leases.give_back(lease)
                return False
            process = context.Process(target=job_main, args=(self._work.ledger.project, *given))
            process.start()
            self._running[process.sentinel] = Running(job, process, lease, heartbeats, time.monotonic())
        return True

    def _end_hung(self) -> None:
        """Kill jobs that are stopped by a signal or whose native code holds the GIL. Other hangs are detected by the
        job's own watchdog."""
        for running in self._running.values():
            if running.heartbeats.overdue() and running.process.is_alive():
                running.hung.append(f"the job hung: {running.heartbeats.why(0, running.process.pid)}")
                abort_hung(running.process)  # its stack trace is written to its FAULT file

    def _ended(self, running: Running) -> None:
        running.process.join()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # kill the ranks and workers of a killed job
            os.killpg(running.process.pid, signal.SIGKILL)
        job, code = running.job, running.process.exitcode
        if code == ELSEWHERE:
            self._leases.give_back(running.lease)
            self._elsewhere[job.key] = job, float("inf")
            return
        asked = self._stopped or (signal.SIGTERM if self._ending else None)
        hung = RankLost(running.hung[0]) if running.hung else None
        stopped = None if code == 0 or hung else asked
        error = hung or death(job, code)
        self._ends.append(Ended(running, partial(record_unexplained, job, error, stopped, wait_s=0.0)))

    def _record_ends(self) -> None:
        """Record the ends of jobs and give back their leases, as soon as all of their ranks are gone."""
        for ended in list(self._ends):
            if not ended.record() and time.monotonic() < ended.until:
                continue
            self._ends.remove(ended)
            self._leases.give_back(ended.running.lease)
            job = ended.running.job
            fault = job.directory / FAULT
            if fault.exists() and not fault.stat().st_size:
                fault.unlink()
            self._tell(job, time.monotonic() - ended.running.began)

    def _look_elsewhere(self, waiting: list[Job]) -> None:
        """Check jobs that another process runs: count the ended ones, and take over those whose process is gone."""
        now = time.monotonic()
        for key, (job, alone_since) in list(self._elsewhere.items()):
            if job.claimed():
                self._elsewhere[key] = job, float("inf")
            elif not is_due(job.state(), retry_failed=False):
                del self._elsewhere[key]
                self._tell(job, None)
            elif now - min(alone_since, now) > 2 * TICK_S:  # its process has had time to record its end
                del self._elsewhere[key]
                waiting.append(job)
            else:
                self._elsewhere[key] = job, min(alone_since, now)

    def _end(self, number: signal.Signals) -> None:
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, number)

    def _kill(self) -> None:
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)


def run_in_pool(work: Work, config: PoolConfig) -> signal.Signals | None:
    """Run the jobs in a pool on this machine. Return the signal that stopped them early, or None."""
    import torch  # noqa: F401 - imported once for all jobs

    # count all jobs of the command, including ended ones: the number of cores per job changes rounding, so it must not
    # depend on how many jobs are left
    return Pool(work, Leases(config.jobs_at_once, config.gpus_per_job, len(work.total))).run()
