"""SLURM launcher: run each job of a sweep as a SLURM batch job, and watch them or leave.

    jobs -> sbatch --array -> srun: train.py sweep.job=DIRECTORY, in each task of a job -> status.json -> the next

Before the time limit SLURM sends a signal; the run saves, and its batch job is requeued and resumes it. This process
only monitors: if it ends, the batch jobs continue, and a repeated command finds their results.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from samebits.errors import RunFailed
from samebits.files import amount
from samebits.programs import NoAnswer
from samebits.signals import heeded_signals
from samebits.sweeps.job_process import record_unexplained
from samebits.sweeps.launching import Launch
from samebits.sweeps.ledger import Job
from samebits.sweeps.options import SlurmConfig
from samebits.sweeps.progress import say
from samebits.sweeps.slurm_arrays import OVER, Arrays, BatchJob, Outcome, unexplained

if TYPE_CHECKING:
    from samebits.sweeps.drive import Work

POLL_S = 2.0
FULL_S = 30.0  # seconds until jobs that a limit of SLURM has refused are submitted again
UNENDED = ("queued", "running", "preempted")  # states after which SLURM may run a job again
SAY_S = 5.0
REQUEUE_S = 60.0  # seconds for which squeue may not list a job that is being requeued


@dataclass
class Submitted:
    """A batch job that is watched."""

    job: Job
    batch: BatchJob
    began: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)  # monotonic time at which it was last in the queue
    said: bool = False  # a line that it has left the queue was printed


class Batch(Launch):
    """The batch jobs, from their submission until they have left SLURM's queue."""

    AGAIN = "leave them alone"

    def __init__(self, work: Work, config: SlurmConfig) -> None:
        super().__init__(work, config.jobs_at_once)
        self._config, self._arrays = config, Arrays(work.ledger, config)
        self._running: list[Submitted] = []
        self._waiting: list[Job] = []  # not submitted yet
        self._full_at = -FULL_S  # monotonic time at which a limit has refused jobs
        self._told = ""  # why squeue failed
        self._asking = False
        self._submitting = False  # not all batch jobs in SLURM's queue are known
        self._asked: signal.Signals | None = None  # a signal that came meanwhile

    def _run(self) -> None:
        source = iter(self._work.jobs)
        while True:
            if not self._ending:
                room = self._config.jobs_at_once - len(self._running) - len(self._waiting)
                self._waiting += islice(source, max(0, room))
                self._submit()
            if not self._running and (self._ending or not self._waiting):
                return
            time.sleep(POLL_S)
            queued = self._queue()
            for one in self._gone(queued, time.monotonic()):
                self._running.remove(one)
                asked = self._stopped or (signal.SIGTERM if self._ending else None)
                record_unexplained(one.job, unexplained((queued or {}).get(one.job.key, one.batch)), asked)
                self._tell(one.job, time.monotonic() - one.began)

    def _submit(self) -> None:
        """Submit the waiting jobs. A signal is answered afterwards, when all batch jobs are known."""
        if not self._waiting or time.monotonic() < self._full_at + FULL_S:
            return
        self._submitting = True
        try:
            self._submit_waiting()
        finally:
            self._submitting = False
        if self._asked is not None:
            number, self._asked = self._asked, None
            signal.raise_signal(number)

    def _submit_waiting(self) -> None:
        """Submit the waiting jobs until a signal comes. Jobs that an earlier command left in SLURM's queue are only
        watched."""
        try:
            found = self._arrays.submit(
                self._waiting, self._work.options.retry_failed, go_on=lambda: self._asked is None
            )
        except NoAnswer as error:
            if not self._running:
                raise RunFailed(unknown(error)) from None
            return  # the next look at the queue prints why
        jobs = {job.key: job for job in self._waiting}
        self._waiting = found.left
        self._running += [Submitted(jobs[key], batch) for key, batch in found.queued.items()]
        for job in found.ended:
            self._tell(job, None)
        if found.new:
            self._screen.say(submitted(found))
        if found.why:
            self._full_at = time.monotonic()
            self._screen.say(f"{amount(len(found.left), 'job')} waiting for room in SLURM's queue: {found.why}")

    def _queue(self) -> dict[str, BatchJob] | None:
        """Return the batch jobs that squeue lists, by the key of their job. None: squeue failed; the first failure in a
        row is printed."""
        try:
            queued = self._arrays.listed()
        except NoAnswer as error:
            if not self._told:
                self._screen.say(f"squeue: {error}; all jobs are assumed to be in the queue until it works again")
            self._told = str(error)
            return None
        self._told = ""
        return queued

    def _gone(self, queued: dict[str, BatchJob] | None, now: float) -> list[Submitted]:
        for one in self._running:
            if queued is None or ((found := queued.get(one.job.key)) and found.state not in OVER):
                one.seen = now
        again = {one.job.key for one in self._running if one.job.state() in UNENDED and not self._ending}
        for one in self._running:
            if one.job.key in again and not one.said and now > one.seen + SAY_S:
                one.said = True
                self._screen.say(
                    f"batch job {one.batch.number} has left SLURM's queue unfinished; waiting {REQUEUE_S:.0f} s for it "
                    "to be requeued"
                )
        return [one for one in self._running if now > one.seen + (REQUEUE_S if one.job.key in again else 0.0)]

    def _goes_on(self, number: signal.Signals) -> bool:
        """Offer the choice after Ctrl-C in a terminal: cancel the batch jobs, leave them, or continue to watch."""
        if self._submitting:
            if self._asked is not None and number == signal.SIGINT:
                self._kill()
            self._asked = number
            self._screen.say(f"{number.name}: waiting for SLURM's answer; Ctrl-C again: {self.AGAIN}")
            return True
        if number != signal.SIGINT or not self._running or not in_terminal():
            return False
        if self._asking:  # Ctrl-C again
            self._kill()
        self._asking = True
        try:
            self._screen.say(
                f"{amount(len(self._running), 'batch job')} in SLURM's queue. Type c and Enter to cancel them (running "
                "jobs save), l to leave them and end this command, w to watch on; Ctrl-C again: leave them"
            )
            while self._stopped is None:  # a SIGTERM cancels them meanwhile
                if select.select([0], [], [], POLL_S)[0]:
                    answer = os.read(0, 1024).strip().lower()[:1]
                    if answer == b"l" or not answer:  # also the end of the input, and Enter
                        self._kill()
                    return answer != b"c"
            return True
        finally:
            self._asking = False

    def _end(self, number: signal.Signals) -> None:
        """Cancel the batch jobs: SLURM sends SIGTERM, the runs save; after KillWait it kills those that have not
        ended."""
        if self._running:
            try:
                self._arrays.cancel([one.batch for one in self._running])
            except NoAnswer as error:
                self._screen.say(f"scancel: {error}; jobs may still be running: squeue --me lists them")

    def _kill(self) -> None:
        more = f"; {amount(len(self._waiting), 'job')} not submitted" if self._waiting and not self._submitting else ""
        stay = "submitted batch jobs" if self._submitting else amount(len(self._running), "batch job")
        self._screen.say(
            f"left in SLURM's queue: {stay}{more}; repeat the command with sweep={self._work.ledger.name} to watch them"
        )
        raise KeyboardInterrupt

    @contextmanager
    def _signals(self) -> Iterator[None]:
        with super()._signals():
            for number in set(heeded_signals()) - {signal.SIGINT, signal.SIGTERM}:
                signal.signal(number, signal.SIG_DFL)  # the batch jobs do not need this process
            yield


def in_terminal() -> bool:
    """Return True if this process may read from the terminal."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def run_on_slurm(work: Work, config: SlurmConfig) -> signal.Signals | None:
    """Run the jobs as SLURM batch jobs. Return the signal that stopped them early, or None."""
    return Batch(work, config).run()


def submit_to_slurm(work: Work, config: SlurmConfig) -> int:
    """Submit the jobs and return, without waiting for them. Return the number of jobs that a limit of SLURM has
    refused."""
    arrays = Arrays(work.ledger, config)
    try:
        found = arrays.submit(list(work.jobs), work.options.retry_failed)
        states = [one.state for one in arrays.listed().values() if one.state not in OVER]
    except NoAnswer as error:
        raise RunFailed(unknown(error)) from None
    if found.new:
        say(submitted(found))
    if found.left:
        say(f"{amount(len(found.left), 'job')} not submitted; repeat the command when others have ended: {found.why}")
    counts = ", ".join(f"{states.count(state):,} {state.lower()}" for state in sorted(set(states)))
    say(f"in SLURM's queue: {counts or 'no job of this sweep'}")
    return len(found.left)


def submitted(found: Outcome) -> str:
    """Return the line for new batch jobs."""
    arrays = list(dict.fromkeys(found.queued[key].number.partition("_")[0] for key in found.new))
    shown = ", ".join(arrays if len(arrays) < 5 else [*arrays[:2], "...", arrays[-1]])
    return f"{amount(len(found.new), 'batch job')} submitted as job array {shown}; squeue --me lists them"


def unknown(error: NoAnswer) -> str:
    """Return the message for an squeue that fails before a submission."""
    return (
        f"hydra/launcher=slurm: squeue failed: {error}; nothing was submitted, because it does not say which jobs "
        "are queued already - repeat the command later; if squeue never works here, start it on a login node of the "
        "cluster"
    )
