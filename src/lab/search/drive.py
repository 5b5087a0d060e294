"""A search from start to end: trials are drawn, run as jobs of a sweep, and told to the study as they end.

unfinished trials of an earlier start -> what their directories say: told, or gone on with
while there is room: ask -> compose, check, write the run directory -> launch -> tell
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from lab.directory import write_json
from lab.errors import ConfigError
from lab.search import objectives as objective_values
from lab.search.pruning import TRIAL
from lab.search.study import Asked, Search
from lab.sweep.ledger import Job, Ledger, NewJob
from lab.sweep.plan import Composer

LOCK = ".search.lock"


class Runner(Protocol):
    """What runs jobs, several at a time."""

    def submit(self, job: Job) -> None: ...

    def wait(self) -> Sequence[Job]:
        """Until one of the jobs that run has ended -> those that have."""


class Drive:
    """command: the overrides as typed. say: shows a line to the user."""

    def __init__(
        self,
        search: Search,
        ledger: Ledger,
        composer: Composer,
        command: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.search, self.ledger, self.composer, self.command, self.say = search, ledger, composer, command, say

    def run(self, runner: Runner) -> None:
        """Until search.limit trials have ended; those that were interrupted stay for the next start."""
        waiting = [asked for asked in self.search.running() if not self._tell(asked.number)]
        numbers: dict[str, int] = {}
        while True:
            while len(numbers) < self.search.config.n_jobs and (waiting or self._room()):
                asked = waiting.pop(0) if waiting else self.search.ask()
                if (job := self._job(asked)) is not None:
                    numbers[job.key] = asked.number
                    runner.submit(job)
            if not numbers:
                return
            for job in runner.wait():
                self._tell(numbers.pop(job.key))

    def _room(self) -> bool:
        """Trials that were interrupted take the place of new ones: the next start goes on with them."""
        running = self.search.count_running()
        return len(self.search.ended()) + running < self.search.limit

    def _job(self, asked: Asked) -> Job | None:
        """The trial's run directory, written where an earlier start has not; None: its config has a mistake."""
        overrides, key = self.search.space.overrides(asked.params), trial_key(asked.number)
        try:
            cfg = self.composer.job(asked.number, key, overrides)
        except ConfigError as error:
            self.say(f"error: {error}")
            self.search.tell(asked.number, "fail", why=str(error))
            return None
        new = NewJob(overrides, cfg, {}, key, {"trial": asked.number})
        objectives = [{"key": o.key, "mode": o.mode} for o in self.search.objectives]
        [job] = self.ledger.add([new], self.command, list(self.search.space.swept), objectives)
        write_json(job.directory / TRIAL, self.search.facts(asked))
        return job

    def _tell(self, number: int) -> bool:
        """Tell the study what has become of a trial -> whether it has ended."""
        job = Job(number, (), self.ledger.directory / trial_key(number))
        status = job.status()
        state = status.get("status")
        if state == "finished":
            values, why = objective_values.read(job.result(), self.search.objectives)
            self.search.tell(number, "fail" if why else "complete", values, why)
        elif state == "pruned":
            self.search.tell(number, "pruned")
        elif state == "failed":
            self.search.tell(number, "fail", why=str(status.get("error", "")))
        else:
            return False
        return True


def trial_key(number: int) -> str:
    """The name of a trial's directory: equal parameters may be tried twice."""
    return f"trial_{number:04d}"


@contextmanager
def driving(sweep_dir: Path) -> Iterator[None]:
    """One process drives a search; the kernel gives its place free whatever happens to it."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(sweep_dir / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"sweep={sweep_dir.name}: another process drives this search; wait or stop it "
                "(hydra.sweeper.n_jobs runs several trials at once)"
            ) from None
        yield
    finally:
        os.close(lock)
