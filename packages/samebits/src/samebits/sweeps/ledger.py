"""The ledger of a sweep, the list of its jobs: its directory, sweep.json and the state of each job. Does not import
torch.

    ledger = Ledger(project, directory)
    known = ledger.find(values)                     # the job with these values, if there is one
    jobs = ledger.add([NewJob(...), ...])           # composed, checked configs -> run directories, status queued
    for job in ledger.due(jobs, retry_failed): ...  # run samebits.sweeps.job.run_job(job.directory), anywhere
    job.state()                                     # its state now

Several processes may use one ledger at once: `add` takes a lock, and the process that holds the lock of a job's
directory runs the job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from samebits.code import Code, Surroundings, by_code, code_changes, code_here, codes_of, surroundings, use_code
from samebits.credentials import redacted
from samebits.errors import ConfigError, DirectoryLockedError
from samebits.files import read_json, remove_leftovers, write_json
from samebits.locks import Lock
from samebits.project import Program
from samebits.runs import claimed, fill_directory, holds_run, is_claimed
from samebits.saved import check_run_dir, one_spelling, translate_override
from samebits.status import RESULT, STATUS
from samebits.sweeps.identity import differing_keys, digest, directory_name
from samebits.sweeps.progress import counted

SWEEP = "sweep.json"
ENDED = ("finished", "pruned")  # never run again


@dataclass(frozen=True)
class Job:
    """One job of the ledger. Its config, status and result are in its run directory."""

    number: int
    overrides: tuple[str, ...]
    directory: Path

    @property
    def key(self) -> str:
        """Return the name of the job's directory."""
        return self.directory.name

    def status(self) -> dict[str, Any]:
        """Return status.json. Its `status` is queued, running, finished, failed, interrupted, preempted or pruned."""
        return read_json(self.directory / STATUS)

    def state(self) -> str:
        """Return `status` of status.json."""
        return str(self.status().get("status", "queued"))

    def result(self) -> dict[str, Any]:
        """Return result.json; empty until the job has finished."""
        return read_json(self.directory / RESULT)

    def exists(self) -> bool:
        """Return False if the job's directory was deleted or emptied."""
        return holds_run(self.directory) or bool(self.status())

    def claimed(self) -> bool:
        """Return True if a process is running the job: it holds the lock of the job's directory."""
        return is_claimed(self.directory)


@dataclass(frozen=True)
class NewJob:
    """A job to write. cfg: the resolved and checked config as plain values. values: its identity (identity.values_of).

    key: the name of the directory; None: derived from the values. Searches set it, because they may try equal values
    twice. facts: further entries of `sweep` in status.json, such as {"trial": 3}.
    """

    overrides: Sequence[str]
    cfg: dict[str, Any]
    values: Mapping[str, Any]
    key: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """The jobs of one sweep. directory: outputs/<name>/sweeps/<sweep>/, created by the first `add`. project: the
    program that runs the jobs."""

    def __init__(self, project: Program, directory: Path) -> None:
        self.project, self.directory = project, directory
        self._translated = partial(translate_override, project)
        self._book: dict[str, Any] = {}
        self.refresh()

    @property
    def name(self) -> str:
        """Return the name of the sweep."""
        return self.directory.name

    @property
    def swept(self) -> list[str]:
        """Return the keys in which the jobs differ."""
        return list(map(self._translated, self._book.get("swept", [])))

    @property
    def follows(self) -> dict[str, list[str]]:
        """Return {swept key: keys of the configs that interpolate it}."""
        return dict(self._book.get("follows", {}))

    @property
    def commands(self) -> list[list[str]]:
        """Return the overrides of each command that has added jobs, as typed."""
        return list(self._book.get("commands", []))

    @property
    def objectives(self) -> list[dict[str, str]]:
        """Return [{key, mode}], the scores that rank the jobs. mode: min or max."""
        return list(self._book.get("objectives", []))

    def refresh(self) -> None:
        """Read the jobs that other processes have added."""
        self._book = read_json(self.directory / SWEEP)
        self.jobs: list[Job] = []  # jobs of all commands, by number
        self._by_key: dict[str, Job] = {}
        self._by_identity: dict[str, Job] = {}
        for entry in self._book.get("jobs", []):
            if Path(entry["key"]).name != entry["key"] or entry["key"] == "..":  # "../x" would run a job elsewhere
                raise ConfigError(f"{self.directory / SWEEP}: the job {entry['key']!r} is not a folder name")
            job = Job(entry["number"], tuple(map(self._translated, entry["overrides"])), self.directory / entry["key"])
            self._index(job, entry.get("identity"))

    def _index(self, job: Job, identity: str | None) -> None:
        """Index the job. identity: digest of its values; None: a trial."""
        self.jobs.append(job)
        self._by_key[job.key] = job
        if identity is not None:
            self._by_identity[identity] = job

    def find(self, values: Mapping[str, Any]) -> Job | None:
        """Return the job with these values, added by any command; None if there is none."""
        # the ledger may have been written before keys were renamed
        names = {now: old for old, now in self.project.moved_keys.items()}
        before = {names.get(key, key): value for key, value in values.items()}
        return self._by_identity.get(digest(values)) or self._by_identity.get(digest(before))

    def named(self, key: str) -> Job | None:
        """Return the job whose directory has this name, or None."""
        return self._by_key.get(key)

    def add(
        self,
        new: Iterable[NewJob],
        command: Sequence[str],
        swept: Iterable[str],
        objectives: Sequence[Mapping[str, str]],
        follows: Mapping[str, Collection[str]],
    ) -> list[Job]:
        """Write the run directories of new jobs, with status queued. Return the jobs in the given order.

        An existing job with the same key or values is not changed, unless its directory was deleted. command: the
        overrides as typed. follows: {swept key: keys of the config that interpolate it}."""
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
                elif not job.exists():
                    self._write_job(job, one, known)
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
            # written last, when the directories that it names are complete
            write_json(self.directory / SWEEP, self._book)
        return added

    def _write_job(self, job: Job, new: NewJob, known: Surroundings) -> None:
        if holds_run(job.directory) and job.state() != "queued":
            return  # sweep.json was removed: keep the existing run
        job.directory.mkdir(exist_ok=True)
        remove_leftovers(job.directory)
        facts = {"sweep": self.name, "job": job.number, **new.facts}
        fill_directory(self.project, job.directory, new.cfg, list(new.overrides), "queued", known, sweep=facts)

    def due(self, jobs: Iterable[Job], retry_failed: bool) -> list[Job]:
        """Return the jobs to run: jobs that have not ended, and failed ones if retry_failed. Jobs that another process
        is running are included; their directories are locked."""
        return [job for job in jobs if is_due(job.state(), retry_failed)]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock for changes of sweep.json. The kernel releases it if the process is killed."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            check_run_dir(self.directory, self._by_key)
            lock = Lock(self.directory / ".lock", wait_s=math.inf)
        except OSError as error:
            why = error.strerror
            raise ConfigError(f"hydra.sweep.dir={self.directory}: cannot be written: {why}") from None
        with lock:
            remove_leftovers(self.directory)
            self.refresh()
            yield


def record_code(ledger: Ledger) -> str:
    """Record the current code for all queued jobs, before they run, because code may be edited between two commands or
    during a sweep. Return a warning if other jobs ran with different code, otherwise ""."""
    known = surroundings(ledger.project.root)
    here = code_here(ledger.project.root, known)
    found: list[tuple[int, Code]] = []
    for job in ledger.jobs:
        if not job.exists() or (own := codes_of(job.directory)[-1]) == here:
            continue
        if job.state() != "queued":
            found.append((job.number, own))
            continue
        with suppress(DirectoryLockedError), claimed(job.directory, wait_s=0.0):  # otherwise another process runs it
            use_code(job.directory, known)
    if not found:
        return ""
    changed = dict.fromkeys(line for _, own in found for line in code_changes(own, here))
    return (
        f"sweep {ledger.name} goes on with other code ({', '.join(changed)}): {by_code(found)} ran before, now it is "
        f"{here}. What has finished is kept; sweep=ANOTHER_NAME runs all with one code"
    )


def is_due(state: str, retry_failed: bool) -> bool:
    """Return True if a job in this state is to be run."""
    return state not in ENDED and (state != "failed" or retry_failed)


def differing(overrides: Sequence[str], swept: Collection[str]) -> str:
    """Return the overrides of swept keys, as text; equal numbers look equal: lr=1e-2 is lr=0.01."""
    return " ".join(_spelled(text) for text in overrides if text.lstrip("+").partition("=")[0] in swept)


@lru_cache(1024)
def _spelled(override: str) -> str:
    value = OverridesParser.create().parse_override(override).value()
    return f"{override.partition('=')[0]}={one_spelling(value)}" if type(value) in (int, float) else override
