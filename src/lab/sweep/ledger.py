"""The book of a sweep: its directory, sweep.json and the state of each job. Imports no torch.

    ledger = Ledger(directory)
    known = ledger.find(values)                     # the job with these values, if there is one
    jobs = ledger.add([NewJob(...), ...])           # composed, checked configs -> run directories, status queued
    for job in ledger.due(jobs, retry_failed): ...  # run lab.sweep.job.run_job(job.directory), anywhere
    job.state()                                     # what has become of it

Several processes may use one ledger at the same time: `add` is exclusive, and a job is run by who holds its directory.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lab import directory as run_directory
from lab.errors import ConfigError
from lab.sweep.identity import digest, directory_name

SWEEP = "sweep.json"
ENDED = ("finished", "pruned")  # never run again


@dataclass(frozen=True)
class Job:
    """One job as the ledger knows it; everything else stands in its run directory."""

    number: int
    overrides: tuple[str, ...]
    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name

    def status(self) -> dict[str, Any]:
        """status.json; its `status` is queued, running, finished, failed, interrupted, preempted or pruned."""
        return run_directory.read_json(self.directory / run_directory.STATUS)

    def state(self) -> str:
        return str(self.status().get("status", "queued"))

    def result(self) -> dict[str, Any]:
        """result.json; empty until the job has finished."""
        return run_directory.read_json(self.directory / run_directory.RESULT)

    def claimed(self) -> bool:
        """Whether some process is running it now."""
        return run_directory.is_claimed(self.directory)


@dataclass(frozen=True)
class NewJob:
    """A job to write. cfg: resolved and checked. values: what tells it apart (identity.values_of).

    key: the directory's name, where it is not to follow from the values (a search may try equal values twice).
    facts: for status.json's `sweep` beside the sweep's name and the job's number, such as {"trial": 3}.
    """

    overrides: Sequence[str]
    cfg: DictConfig
    values: Mapping[str, Any]
    key: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """directory: outputs/<name>/sweeps/<sweep>/; it is made by the first `add`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._book: dict[str, Any] = {}
        self.refresh()

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def jobs(self) -> list[Job]:
        """All jobs, of other commands too, by number."""
        entries = self._book.get("jobs", [])
        return [Job(e["number"], tuple(e["overrides"]), self.directory / e["key"]) for e in entries]

    @property
    def swept(self) -> list[str]:
        """The keys in which its jobs differ."""
        return list(self._book.get("swept", []))

    @property
    def objectives(self) -> list[dict[str, str]]:
        """[{key, mode}]: the scores that say which job is best."""
        return list(self._book.get("objectives", []))

    def refresh(self) -> None:
        """Read what other processes have added."""
        self._book = run_directory.read_json(self.directory / SWEEP)

    def find(self, values: Mapping[str, Any]) -> Job | None:
        """The job with these values, whoever has added it and whatever was swept then."""
        end = f"_{digest(values)}"
        return next((job for job in self.jobs if job.key.endswith(end)), None)

    def add(
        self,
        new: Iterable[NewJob],
        command: Sequence[str],
        swept: Iterable[str],
        objectives: Sequence[Mapping[str, str]],
    ) -> list[Job]:
        """Write the run directories of new jobs, status queued -> the jobs in the order given.

        A job that is there already, by its key or values, stays as it is. command: the overrides as typed.
        """
        with self._exclusive():
            jobs, added = self.jobs, []
            all_swept = list(dict.fromkeys([*self.swept, *swept]))
            by_key, by_end = {job.key: job for job in jobs}, {job.key.rpartition("_")[2]: job for job in jobs}
            known = run_directory.surroundings()
            for one in new:
                key = one.key or directory_name(one.values, all_swept)
                job = by_key.get(key) if one.key else by_end.get(digest(one.values))
                if job is None:
                    job = Job(len(jobs), tuple(one.overrides), self.directory / key)
                    self._write_job(job, one, known)
                    jobs.append(job)
                    by_key[key] = by_end[key.rpartition("_")[2]] = job
                added.append(job)
            self._book = {
                "name": self.name,
                "created": self._book.get("created", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
                "overrides": list(command),
                "swept": all_swept,
                "objectives": [dict(objective) for objective in objectives],
                "jobs": [{"key": j.key, "number": j.number, "overrides": list(j.overrides)} for j in jobs],
            }
            run_directory.write_json(self.directory / SWEEP, self._book)  # last: what it names is whole
        return added

    def _write_job(self, job: Job, new: NewJob, known: run_directory.Surroundings) -> None:
        if run_directory.holds_run(job.directory) and job.state() != "queued":
            return  # somebody has removed sweep.json: what has run is not to be lost
        job.directory.mkdir(exist_ok=True)
        facts = {"sweep": self.name, "job": job.number, **new.facts}
        run_directory.fill(job.directory, new.cfg, list(new.overrides), "queued", known, sweep=facts)

    def due(self, jobs: Iterable[Job], retry_failed: bool) -> list[Job]:
        """Those that are to run: not ended, and failed ones only on request. One that another process runs now is
        among them; who comes to run it will see."""
        return [job for job in jobs if is_due(job.state(), retry_failed)]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One process at a time changes the book; the kernel gives the lock free whatever happens to it."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            why = error.strerror
            raise ConfigError(f"hydra.sweep.dir={self.directory}: nothing can be written there: {why}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            yield
        finally:
            os.close(lock)


def is_due(state: str, retry_failed: bool) -> bool:
    return state not in ENDED and (state != "failed" or retry_failed)


def differing(overrides: Sequence[str], swept: Collection[str]) -> str:
    """The overrides in which the jobs differ."""
    return " ".join(text for text in overrides if text.lstrip("+").partition("=")[0] in swept)
