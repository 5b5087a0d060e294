"""Shared code of this project's launchers: reports of ended jobs, sweep.fail_fast, stop signals."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from samebits import early_signals
from samebits.signals import handling_signals
from samebits.sweeps.ledger import Job
from samebits.sweeps.screen import Screen

if TYPE_CHECKING:
    from samebits.sweeps.drive import Work


class Launch(ABC):
    """Base class of launchers: run the jobs of `work` until the last one has ended."""

    AGAIN = "now"  # describes the effect of a second Ctrl-C in the message

    def __init__(self, work: Work, at_once: int) -> None:
        self._work, self._screen = work, Screen(work.ledger, work.total, at_once, work.options.retry_failed)
        self._stopped: signal.Signals | None = None
        self._ending = False

    def run(self) -> signal.Signals | None:
        """Run the jobs until all have ended. Return the signal that stopped them early, or None."""
        try:
            with self._signals():
                self._run()
        finally:
            early_signals.allow_interrupt()  # Ctrl-C may interrupt the report that follows
        return self._stopped

    @abstractmethod
    def _run(self) -> None:
        """Take jobs and start them while `_ending` is not set. Call `_tell` for each started job that has ended."""

    @abstractmethod
    def _end(self, number: signal.Signals) -> None:
        """Signal the running jobs to save and stop."""

    @abstractmethod
    def _kill(self) -> None:
        """Handle a second Ctrl-C: kill the running jobs."""

    def _goes_on(self, number: signal.Signals) -> bool:
        """Return True if the first signal changes nothing. A launcher may offer the choice."""
        return False

    def _tell(self, job: Job, seconds: float | None, shown: str | None = None) -> None:
        """Report the end of a job; with sweep.fail_fast stop the others. seconds: duration, None if another process ran
        it. shown: the state to print instead of the one in status.json."""
        state = job.state()
        self._screen.end(job, shown or state, seconds)
        self._work.on_end(job)
        if state == "failed" and self._work.options.fail_fast and not self._ending:
            self._screen.say("sweep.fail_fast: the other jobs save and stop")
            self._ending = True
            self._end(signal.SIGTERM)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: the first one makes the jobs save and stop, a second Ctrl-C calls `_kill`."""

        def handle(number: int, frame: Any) -> None:
            if self._stopped is None and self._goes_on(signal.Signals(number)):
                return
            if self._stopped is None:
                self._stopped, self._ending = signal.Signals(number), True
                self._screen.say(f"{self._stopped.name}: running jobs save and stop; Ctrl-C again: {self.AGAIN}")
                self._end(self._stopped)
            elif number == signal.SIGINT:
                self._kill()

        with handling_signals(handle):
            if asked := early_signals.asked():
                handle(signal.Signals[asked], None)
            yield
