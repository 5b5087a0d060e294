"""What the launchers of this project share: telling a job's end, sweep.fail_fast, stop signals."""

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
    """Work that a launcher is given, until its last job has ended."""

    AGAIN = "now"  # what a second Ctrl-C does

    def __init__(self, work: Work, at_once: int) -> None:
        self._work, self._screen = work, Screen(work.ledger, work.total, at_once)
        self._stopped: signal.Signals | None = None
        self._ending = False

    def run(self) -> signal.Signals | None:
        """Run the jobs to their ends. Returns the signal that stopped them early; None: none did."""
        try:
            with self._signals():
                self._run()
        finally:
            early_signals.allow_interrupt()  # of what is done with the results
        return self._stopped

    @abstractmethod
    def _run(self) -> None:
        """Draw jobs and start them, but none where `_ending` is set; `_tell` the ends of all that were started."""

    @abstractmethod
    def _end(self, number: signal.Signals) -> None:
        """Ask the running jobs to save and end."""

    @abstractmethod
    def _kill(self) -> None:
        """The second Ctrl-C: do not wait for them."""

    def _tell(self, job: Job, seconds: float | None, shown: str | None = None) -> None:
        """Report a job's end; with sweep.fail_fast the others end. seconds: None: it ran elsewhere. shown: its state,
        where it is not to be the one in its status."""
        state = job.state()
        self._screen.end(job, shown or state, seconds)
        self._work.on_end(job)
        if state == "failed" and self._work.options.fail_fast and not self._ending:
            self._screen.say("sweep.fail_fast: the other jobs save and end")
            self._ending = True
            self._end(signal.SIGTERM)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal has the jobs save and end; a second Ctrl-C is `_kill`."""

        def handle(number: int, frame: Any) -> None:
            if self._stopped is None:
                self._stopped, self._ending = signal.Signals(number), True
                self._screen.say(f"{self._stopped.name}: running jobs save and end; Ctrl-C again: {self.AGAIN}")
                self._end(self._stopped)
            elif number == signal.SIGINT:
                self._kill()

        with handling_signals(handle):
            if asked := early_signals.asked():
                handle(signal.Signals[asked], None)
            yield
