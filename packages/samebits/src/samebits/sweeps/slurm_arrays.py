"""Submit jobs of a sweep as SLURM job arrays, each job once, and look up which of them are in SLURM's queue.

    .slurm/TOKEN.jobs, .slurm/TOKEN.sh -> sbatch --array -> .slurm/TOKEN.number; squeue lists TOKEN.sh

The files of a submission are complete before `sbatch` starts, and SLURM's queue contains the name of the script. So a
command that is killed at any time leaves batch jobs that run and that the next command finds. `sbatch` inherits the
lock of the folder: if only the command was killed, the next one waits until its `sbatch` has ended.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.code import python_path
from samebits.config import quote_value
from samebits.errors import PREEMPTED, ConfigError, RunFailed
from samebits.files import make_folder, no_links, read_text, replace_text
from samebits.locks import Lock
from samebits.programs import NoAnswer, environment_without, slurm
from samebits.signals import held_signals
from samebits.status import STATUS
from samebits.sweeps.job_process import OUTPUT, record_unexplained
from samebits.sweeps.ledger import Job, Ledger, is_due
from samebits.sweeps.options import SlurmConfig

FOLDER = ".slurm"  # folder of the submissions in the sweep's directory
CANCELLED = "cancelled"  # file in it: batch jobs that a command has cancelled
SBATCH_S = 300.0  # seconds; sbatch retries while the controller is busy
MAX_ARRAY_SIZE = 1001  # SLURM's default
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
# errors of sbatch at a limit of submitted jobs; the second one may also be a limit of a single job
FULL, PERHAPS_FULL = re.compile(r"SubmitJob|temporarily u"), re.compile(r"job submit limit")
UNCERTAIN = re.compile(r"timed out|Zero Bytes", re.IGNORECASE)  # errors after which the jobs may be submitted
RESERVED = ("array", "clusters", "job_name", "output", "open_mode", "parsable", "wait", "wrap", "test_only", "signal")
TOKEN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")  # name of a submission

# {...} is replaced; $directory is the job's run directory. A job is queued again by itself unless SLURM does it after a
# preemption or a user has cancelled it (SIGTERM).
SCRIPT = """#!/bin/bash
# {command}
# Job i of the array runs line i + 1 of {jobs}.
key=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {jobs})
directory={sweep}/"$key"
{setup}
export PYTHONPATH={python_path}"${{PYTHONPATH:+:$PYTHONPATH}}"
srun --unbuffered --kill-on-bad-exit=0 {srun}{python} -u {program} {override}"$key'" >>"$directory/{output}" 2>&1
status=$?
if [ $status -eq {preempted} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ] &&
  ! grep -q '"signal": "SIGTERM"' "$directory/{status}"; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit $status
"""


@dataclass(frozen=True)
class BatchJob:
    """A batch job of a sweep. number: in SLURM, e.g. 17_3; "" if it is unknown. state: as squeue prints it, or ""."""

    token: str
    index: int
    number: str
    state: str = ""

    @property
    def log(self) -> str:
        """Return the name of the file with the output of its batch script, which exists if the script has started."""
        return f"{self.token}_{self.index}.log"


@dataclass
class Outcome:
    """What became of jobs to submit. new: keys of the submitted ones. queued: batch jobs in SLURM's queue by key,
    including the new ones. ended: not due any more. left: not submitted. why: SLURM's message, if a limit of submitted
    jobs is the reason."""

    new: list[str] = field(default_factory=list)
    queued: dict[str, BatchJob] = field(default_factory=dict)
    ended: list[Job] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    why: str = ""


class Arrays:
    """The job arrays of a sweep."""

    def __init__(self, ledger: Ledger, config: SlurmConfig) -> None:
        self._ledger, self._config = ledger, config
        self.folder = ledger.directory / FOLDER
        self._read: dict[str, list[str]] = {}  # files that do not change

    def submit(self, jobs: Sequence[Job], retry_failed: bool, go_on: Callable[[], bool] = lambda: True) -> Outcome:
        """Submit the jobs that are due and not in SLURM's queue, in arrays. go_on: asked before each array.

        A job whose batch job has started and ended without a record is recorded as failed. Raise NoAnswer if squeue
        fails, RunFailed if sbatch fails."""
        if not jobs:
            return Outcome()
        with self._exclusive() as lock:
            found = Outcome()
            due: list[Job] = []
            before, every = self._submitted(), self.listed()
            queue = {key: one for key, one in every.items() if one.state not in OVER}
            cancelled = set(self._lines(CANCELLED))
            for job in jobs:  # read after squeue: a job that it did not list has written its final state
                if one := queue.get(job.key):
                    found.queued[job.key] = one
                    continue
                last = every.get(job.key) or before.get(job.key)
                if last and last.log.removesuffix(".log") not in cancelled and (self.folder / last.log).exists():
                    record_unexplained(job, unexplained(last))
                (due if is_due(job.state(), retry_failed) else found.ended).append(job)
            self._submit(due, list(queue.values()), found, lock, go_on)
        return found

    def listed(self) -> dict[str, BatchJob]:
        """Return the batch jobs of the sweep that squeue lists, by the key of their job; those that have ended only for
        a few minutes. Raise NoAnswer if squeue fails."""
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%o", "--user", str(os.getuid())]
        keys: dict[str, list[str]] = {}
        found: dict[str, BatchJob] = {}
        for line in slurm(command).splitlines():
            number, state, script = [*line.strip().split("|", 2), "", ""][:3]
            token, index = Path(script).stem, number.rpartition("_")[2]
            if script not in keys:
                keys[script] = self._lines(f"{token}.jobs") if self._has(Path(script)) else []
            if not index.isdigit() or int(index) >= len(keys[script]):
                continue  # not of this sweep
            key, one = keys[script][int(index)], BatchJob(token, int(index), number, state)
            known = found.get(key, one)
            found[key] = max(known, one, key=lambda one: (one.state not in OVER, one.token))
        return found

    def cancel(self, jobs: Sequence[BatchJob]) -> None:
        """Cancel the batch jobs. Raise NoAnswer if scancel fails."""
        text = "".join(f"{one.token}_{one.index}\n" for one in jobs)
        with open(self.folder / CANCELLED, "a", opener=no_links) as file:  # first: they will not record why they ended
            file.write(text)
        slurm(["scancel", *(one.number for one in jobs)])

    def _submitted(self) -> dict[str, BatchJob]:
        """Return the last batch job of each job, by key, whether or not it is still in SLURM's queue."""
        found = {}
        for path in sorted(self.folder.glob("*.jobs")):
            number = "".join(self._lines(f"{path.stem}.number"))
            for index, key in enumerate(self._lines(path.name)):
                found[key] = BatchJob(path.stem, index, f"{number}_{index}" if number else "")
        return found

    def _has(self, script: Path) -> bool:
        """Return True for a script of this folder: not of another sweep, of which this one may be a copy."""
        known = TOKEN.fullmatch(script.stem) is not None  # first: the job of another program may have any long name
        return known and os.path.realpath(script.parent) == os.path.realpath(self.folder)

    def _submit(
        self, due: list[Job], queue: list[BatchJob], found: Outcome, lock: Lock, go_on: Callable[[], bool]
    ) -> None:
        size = max(1, min(max_array_size(), len(due))) if len(due) > 1 else 1
        while due and go_on():
            chunk = due[:size]
            try:
                token, number = self._sbatch(chunk, queue, lock)
            except Full as full:
                if size == 1 and not queue and not FULL.search(str(full)):
                    raise RunFailed(f"hydra/launcher=slurm: {full}") from None
                if size == 1:
                    found.why = str(full)
                    break
                size = max(1, size // 2)
                continue
            for index, job in enumerate(chunk):
                found.queued[job.key] = BatchJob(token, index, f"{number}_{index}", "PENDING")
                queue.append(found.queued[job.key])
            found.new += [job.key for job in chunk]
            due = due[size:]
        found.left = due

    def _sbatch(self, jobs: Sequence[Job], queue: Sequence[BatchJob], lock: Lock) -> tuple[str, str]:
        """Submit one array. Return its token and number."""
        token = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        script, listed = self.folder / f"{token}.sh", self.folder / f"{token}.jobs"
        command = ["sbatch", *self._options(token, len(jobs), queue), str(script)]
        replace_text(listed, "".join(f"{job.key}\n" for job in jobs))
        replace_text(script, self._script(command, listed))
        with held_signals():  # Ctrl-C must not end sbatch between the submission and its answer
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=SBATCH_S, pass_fds=[lock.fileno()], start_new_session=True,
                    text=True, errors="replace", check=False, env=environment_without("SBATCH_CLUSTERS", "SBATCH_WAIT"),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise RunFailed(uncertain(f"sbatch did not answer within {SBATCH_S:.0f} s")) from None
            number = done.stdout.strip().partition(";")[0]  # with the name of the cluster after it
            if done.returncode == 0 and number.isdigit():
                replace_text(self.folder / f"{token}.number", f"{number}\n")
                return token, number
        said = " ".join((done.stderr or done.stdout).split())[-400:] or f"sbatch ended with status {done.returncode}"
        if done.returncode == 0 or UNCERTAIN.search(said):
            raise RunFailed(uncertain(said))
        listed.unlink()
        script.unlink()
        if FULL.search(said) or PERHAPS_FULL.search(said):
            raise Full(said)
        raise RunFailed(f"hydra/launcher=slurm: {said}")

    def _options(self, token: str, count: int, queue: Sequence[BatchJob]) -> list[str]:
        """Return the options of sbatch. On the command line they take precedence over SBATCH_* variables."""
        config, at_once = self._config, self._config.jobs_at_once
        given: dict[str, Any] = {
            "parsable": True, "requeue": True, "open_mode": "append", "job_name": self._ledger.name,
            "nodes": config.nodes, "ntasks_per_node": config.tasks_per_node, "time": config.timeout_min,
            "signal": f"USR2@{config.signal_delay_s}", "array": f"0-{count - 1}%{at_once}",
            "output": str(self.folder / token).replace("%", "%%") + "_%a.log",
        }  # fmt: skip
        plain = ("partition", "account", "qos", "constraint", "cpus_per_task", "gpus_per_node", "mem")
        given |= {key: getattr(config, key) for key in plain}
        given |= {key.replace("-", "_"): value for key, value in config.additional_parameters.items()}
        if queue and len(queue) + count > at_once:  # %N limits one array, so this one waits for the others of the sweep
            arrays = dict.fromkeys(one.number.partition("_")[0] for one in queue)
            given["dependency"] = ",".join(filter(None, [given.get("dependency"), f"afterany:{':'.join(arrays)}"]))
        return [text for key, value in given.items() if (text := option(key, value))]

    def _script(self, command: Sequence[str], listed: Path) -> str:
        ledger, config = self._ledger, self._config
        prefix = quote_value(f"{ledger.directory}/").removesuffix("'")
        return SCRIPT.format(
            command=shlex.join(command).replace("\n", " "), jobs=shlex.quote(str(listed)),
            sweep=shlex.quote(str(ledger.directory)), setup="\n".join(config.setup or []),
            python_path=shlex.quote(python_path(ledger.project.root)),
            srun=f"--cpus-per-task={config.cpus_per_task} " if config.cpus_per_task else "",
            python=shlex.quote(sys.executable), program=shlex.quote(str(ledger.project.root / "src/train.py")),
            override=shlex.quote(f"sweep.job={prefix}"), output=OUTPUT, preempted=PREEMPTED, status=STATUS,
            requeues=config.max_num_timeout,
        )  # fmt: skip

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        lines = self._read.get(name) or (read_text(path).splitlines() if path.exists() else [])
        if name != CANCELLED:
            self._read[name] = lines
        return lines

    @contextmanager
    def _exclusive(self) -> Iterator[Lock]:
        make_folder(self.folder)
        with Lock(self.folder / ".lock", wait_s=math.inf) as lock:
            yield lock


class Full(Exception):
    """SLURM accepts no more jobs now."""


def unexplained(one: BatchJob) -> RunFailed:
    """Return the error for a batch job that ended without an error record."""
    name = f"batch job {one.number}" if one.number else "its batch job"
    state = f" ({one.state})" if one.state in OVER else ""
    sacct = f"sacct -j {one.number}, " if one.number else ""
    return RunFailed(f"{name} ended without an error record{state}; see {sacct}{FOLDER}/{one.log} and {OUTPUT}")


def uncertain(said: str) -> str:
    """Return the message for an sbatch after which the jobs may be in SLURM's queue or not."""
    return f"hydra/launcher=slurm: {said}; repeat the command: it submits only jobs that are not in SLURM's queue"


def check_sbatch_options(parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError for options of sbatch that the launcher sets itself."""
    for key, value in parameters.items():
        if key.replace("-", "_") in RESERVED:
            raise ConfigError(
                f"hydra.launcher.additional_parameters: {key}={value} - remove it, because the launcher sets this "
                "option of sbatch"
            )


def option(key: str, value: Any) -> str:
    """Return an option of sbatch: --key=value, --key for True, "" for None or False."""
    name = f"--{key.replace('_', '-')}"
    return "" if value is None or value is False else name if value is True else f"{name}={value}"


def max_array_size() -> int:
    """Return how many tasks an array may have on this cluster."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", slurm(["scontrol", "show", "config"]), re.MULTILINE)
    except NoAnswer:
        found = None
    return int(found[1]) if found else MAX_ARRAY_SIZE
