"""The ledger of a sweep: its directory, sweep.json and the state of each job. Imports no torch.

    ledger = Ledger(project, directory)
    known = ledger.find(values)                     # the job with these values, if there is one
    jobs = ledger.add([NewJob(...), ...])           # composed, checked configs -> run directories, status queued
    for job in ledger.due(jobs, retry_failed): ...  # run samebits.sweeps.job.run_job(job.directory), anywhere
    job.state()                                     # its state now

Several processes may use one ledger at once: `add` takes a lock, and a job is run by the process that holds its
directory's lock.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from samebits.code import Surroundings, surroundings
from samebits.credentials import redacted
from samebits.errors import ConfigError
from samebits.files import read_json, remove_leftovers, write_json
from samebits.locks import Lock
from samebits.project import Program
from samebits.runs import fill_directory, holds_run, is_claimed
from samebits.saved import enter, override_of_now
from samebits.status import RESULT, STATUS
from samebits.sweeps.identity import OLD_DIGITS, differing_keys, digest, directory_name, older_digest
from samebits.sweeps.progress import counted

SWEEP = "sweep.json"
ENDED = ("finished", "pruned")  # never run again


@dataclass(frozen=True)
class Job:
    """One job of the ledger; everything else about it is in its run directory."""

    number: int
    overrides: tuple[str, ...]
    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name

    def status(self) -> dict[str, Any]:
        """status.json; its `status` is queued, running, finished, failed, interrupted, preempted or pruned."""
        return read_json(self.directory / STATUS)

    def state(self) -> str:
        return str(self.status().get("status", "queued"))

    def result(self) -> dict[str, Any]:
        """result.json; empty until the job has finished."""
        return read_json(self.directory / RESULT)

    def claimed(self) -> bool:
        """Whether some process is running it now."""
        return is_claimed(self.directory)


@dataclass(frozen=True)
class NewJob:
    """A job to write. cfg: resolved and checked, plain values. values: its identity (identity.values_of).

    key: the directory's name; None: made from the values. (A search may try equal values twice, so it sets the key.)
    facts: further entries of status.json's `sweep`, such as {"trial": 3}.
    """

    overrides: Sequence[str]
    cfg: dict[str, Any]
    values: Mapping[str, Any]
    key: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """directory: outputs/<name>/sweeps/<sweep>/; it is made by the first `add`. project: whose runs the jobs are."""

    def __init__(self, project: Program, directory: Path) -> None:
        self.project, self.directory = project, directory
        self._of_now = partial(override_of_now, project)
        self._book: dict[str, Any] = {}
        self.refresh()

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def swept(self) -> list[str]:
        """The keys in which its jobs differ."""
        return list(map(self._of_now, self._book.get("swept", [])))

    @property
    def follows(self) -> dict[str, list[str]]:
        """{swept key: the keys of the jobs' configs that interpolate it}"""
        return dict(self._book.get("follows", {}))

    @property
    def commands(self) -> list[list[str]]:
        """The overrides of each command that has added jobs, as typed; the first version kept the last command's."""
        before = [self._book["overrides"]] if "overrides" in self._book else []
        return list(self._book.get("commands", before))

    @property
    def objectives(self) -> list[dict[str, str]]:
        """[{key, mode}]: the scores that rank the jobs; mode: min or max."""
        return list(self._book.get("objectives", []))

    def refresh(self) -> None:
        """Read what other processes have added."""
        self._book = read_json(self.directory / SWEEP)
        self.jobs: list[Job] = []  # all, of other commands too, by number
        self._by_key: dict[str, Job] = {}
        self._by_identity: dict[str, Job] = {}
        for entry in self._book.get("jobs", []):
            if Path(entry["key"]).name != entry["key"] or entry["key"] == "..":  # "../x" would run a job elsewhere
                raise ConfigError(f"{self.directory / SWEEP}: the job {entry['key']!r} is no name of a folder")
            job = Job(entry["number"], tuple(map(self._of_now, entry["overrides"])), self.directory / entry["key"])
            self._index(job, entry.get("identity") or entry["key"].rpartition("_")[2])

    def _index(self, job: Job, identity: str | None) -> None:
        """identity: digest of the job's values, or its first digits (from the directory's name); None: a trial."""
        self.jobs.append(job)
        self._by_key[job.key] = job
        if identity is not None:
            self._by_identity[identity] = job

    def find(self, values: Mapping[str, Any]) -> Job | None:
        """The job with these values, whichever command added it; None: there is none."""
        # its ledger may be of before keys were moved
        names = {now: old for old, now in self.project.moved_keys.items()}
        known, before = self._by_identity, {names.get(key, key): value for key, value in values.items()}
        makes = (digest, partial(older_digest, self.project.root))
        digests = dict.fromkeys(make(one) for one in (values, before) for make in makes)
        return next((known[d] for one in digests for d in (one, one[:OLD_DIGITS]) if d in known), None)

    def named(self, key: str) -> Job | None:
        """The job whose directory has this name."""
        return self._by_key.get(key)

    def add(
        self,
        new: Iterable[NewJob],
        command: Sequence[str],
        swept: Iterable[str],
        objectives: Sequence[Mapping[str, str]],
        follows: Mapping[str, Collection[str]],
    ) -> list[Job]:
        """Write the run directories of new jobs, status queued. Returns the jobs in the order given.

        A job with the same key or values that exists stays as it is. command: the overrides as typed. follows: {swept
        key: the keys of the config that interpolate it}.
        """
        with self._exclusive():
            all_swept = list(dict.fromkeys([*self.swept, *swept]))
            known = surroundings(self.project.root)
            entries, added = list(self._book.get("jobs", [])), []
            compared = [job.overrides for job in self.jobs[:1]]  # one known job is enough: all_swept has the rest
            for one in counted(list(new), "writing"):
                job = self.named(one.key) if one.key else self.find(one.values)
                if job is None:
                    key = one.key or directory_name(one.values, all_swept)
                    job = Job(len(self.jobs), tuple(one.overrides), self.directory / key)
                    identity = None if one.key else digest(one.values)
                    self._write_job(job, one, known)
                    self._index(job, identity)
                    entry = {"key": key, "number": job.number, "overrides": list(job.overrides)}
                    entries.append(entry if identity is None else {**entry, "identity": identity})
                    compared.append(job.overrides)
                added.append(job)
            commands = [*self.commands, redacted(list(command))]
            self._book = {
                "name": self.name,
                "created": self._book.get("created", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
                "commands": list(map(list, dict.fromkeys(map(tuple, commands)))),
                "swept": list(dict.fromkeys([*all_swept, *differing_keys(self.project, compared)])),
                "follows": {key: sorted({*self.follows.get(key, ()), *more}) for key, more in follows.items() if more}
                | {key: known for key, known in self.follows.items() if key not in follows},
                "objectives": [dict(objective) for objective in objectives],
                "jobs": entries,
            }
            write_json(self.directory / SWEEP, self._book)  # last: the directories it names are complete
        return added

    def _write_job(self, job: Job, new: NewJob, known: Surroundings) -> None:
        if holds_run(job.directory) and job.state() != "queued":
            return  # sweep.json was removed: keep what has run
        job.directory.mkdir(exist_ok=True)
        remove_leftovers(job.directory)
        facts = {"sweep": self.name, "job": job.number, **new.facts}
        fill_directory(self.project, job.directory, new.cfg, list(new.overrides), "queued", known, sweep=facts)

    def due(self, jobs: Iterable[Job], retry_failed: bool) -> list[Job]:
        """The jobs to run: not ended; failed ones only with retry_failed. Includes jobs that another process runs now:
        whoever starts one finds its directory locked."""
        return [job for job in jobs if is_due(job.state(), retry_failed)]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock for changes of sweep.json by one process at a time; the kernel releases it if the process is killed."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            enter(self.directory, self._by_key)
            lock = Lock(self.directory / ".lock", wait=True)
        except OSError as error:
            why = error.strerror
            raise ConfigError(f"hydra.sweep.dir={self.directory}: nothing can be written there: {why}") from None
        with lock:
            remove_leftovers(self.directory)
            self.refresh()
            yield


def is_due(state: str, retry_failed: bool) -> bool:
    return state not in ENDED and (state != "failed" or retry_failed)


def differing(overrides: Sequence[str], swept: Collection[str]) -> str:
    """The overrides in which the jobs differ."""
    return " ".join(text for text in overrides if text.lstrip("+").partition("=")[0] in swept)
