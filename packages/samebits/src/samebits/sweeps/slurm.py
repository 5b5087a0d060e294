"""SLURM launcher, by submitit: a sweep's jobs as arrays of batch jobs, each of which is handed a run directory.

    jobs -> sbatch --array -> srun: RunDirectory(directory), in each task of a job -> status.json -> the next

A run saves when SLURM signals it before its time limit; its batch job is requeued and resumes it. This process only
monitors: if it ends, the batch jobs go on, and the same command later finds their results.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.code import python_path
from samebits.errors import PREEMPTED, ConfigError, RunFailed
from samebits.files import read_json, read_text, replace_text
from samebits.programs import NoAnswer, answer_of
from samebits.project import Program
from samebits.signals import heeded_signals
from samebits.status import STATUS
from samebits.sweeps.job import run_job
from samebits.sweeps.job_process import OUTPUT, print_to, record_unexplained
from samebits.sweeps.launching import Launch
from samebits.sweeps.ledger import Job
from samebits.sweeps.options import SlurmConfig
from samebits.world import become_rank, run_rendezvous

if TYPE_CHECKING:
    from samebits.sweeps.drive import Work

FOLDER = ".slurm"  # submitit's files, in the sweep's directory
NUMBER = "slurm_job"  # file in a job's directory: number of its batch job
POLL_S = 2.0
UNENDED = ("queued", "running", "preempted")  # states after which SLURM may run a job again
SAY_S = 5.0
REQUEUE_S = 60.0  # for so long squeue may not list a job that goes back into the queue


class RunDirectory:
    """The callable that submitit runs in each task of a batch job, and again after a requeue."""

    def __init__(self, project: Program) -> None:
        self._project = project  # pickled: unpickling it imports the project in the batch job

    def __call__(self, directory: str) -> None:
        become_rank()
        print_to(Path(directory) / OUTPUT)
        if run_rendezvous.follows():
            from samebits.process import join

            status = join(self._project)
            status = 0 if status == PREEMPTED else status  # a failed task could end rank 0 before it requeues
        else:
            try:
                status = run_job(self._project, Path(directory))
            finally:
                run_rendezvous.release()
            # after SIGTERM SLURM requeues the job itself (preemption), or the user wants it to end (scancel)
            if status == PREEMPTED and read_json(Path(directory) / STATUS).get("signal") != "SIGTERM":
                from submitit.core.job_environment import JobEnvironment

                signal.raise_signal(JobEnvironment._usr_sig())  # submitit requeues the job, and ends this process
        if status:
            raise SystemExit(status)  # sacct shows it

    def checkpoint(self, directory: str) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, directory)


@dataclass
class Submitted:
    job: Job
    number: str  # SLURM's: 17_3
    began: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)  # when it was last in the queue
    said: bool = False  # that it has left it


class Batch(Launch):
    """Batch jobs from their submission until they have left SLURM's queue."""

    AGAIN = "leave them alone"

    def __init__(self, work: Work, config: SlurmConfig) -> None:
        super().__init__(work, config.jobs_at_once)
        self._config = config
        self._running: list[Submitted] = []
        self._told = ""  # why squeue gave no answer

    def _run(self) -> None:
        source = iter(self._adopt(self._work.jobs))
        while True:
            if not self._ending:
                self._submit(list(islice(source, self._config.jobs_at_once - len(self._running))))
            if not self._running:
                return
            time.sleep(POLL_S)
            for one in self._gone(self._queue(), time.monotonic()):
                self._running.remove(one)
                told = f"sacct -j {one.number} may tell, or {FOLDER}/ and {OUTPUT}"
                record_unexplained(one.job, RunFailed(f"batch job {one.number} ended without a word; {told}"))
                self._tell(one.job, time.monotonic() - one.began)

    def _adopt(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Yields the jobs to submit; those that an earlier start left in SLURM's queue are monitored instead."""
        queued: set[str] | None = None
        for job in jobs:
            known = job.directory / NUMBER
            number = read_text(known) if known.exists() else ""
            if number and queued is None and (queued := self._queue()) is None:
                raise RunFailed(
                    f"job {job.number} may be in SLURM's queue still ({number}), {self._told}; try again later"
                )
            if number in (queued or ()):
                self._running.append(Submitted(job, number))
            else:
                yield job

    def _submit(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        from submitit.core.utils import FailedJobError

        try:
            task = RunDirectory(self._work.ledger.project)
            batch = self._executor().map_array(task, [str(job.directory) for job in jobs])
        except FailedJobError as error:
            raise RunFailed(f"hydra/launcher=slurm: {str(error).strip().splitlines()[-1]}") from None
        numbers = [one.job_id for one in batch]
        for job, number in zip(jobs, numbers):
            replace_text(job.directory / NUMBER, number)
            self._running.append(Submitted(job, number))
        self._screen.say(f"{len(jobs)} batch jobs submitted, {numbers[0]} to {numbers[-1]}; squeue --me shows them")

    def _executor(self) -> Any:
        import submitit

        config = self._config
        folder = self._work.ledger.directory / FOLDER / "%j"
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=config.max_num_timeout)
        except RuntimeError as error:  # no sbatch here
            raise ConfigError(f"hydra/launcher=slurm: {error}") from None
        plain = ("partition", "account", "qos", "constraint", "cpus_per_task", "gpus_per_node", "mem", "setup")
        given = {key: value for key in plain if (value := getattr(config, key)) is not None}
        executor.update_parameters(
            job_name=self._work.ledger.name, nodes=config.nodes, ntasks_per_node=config.tasks_per_node,
            time=config.timeout_min, signal_delay_s=config.signal_delay_s, array_parallelism=config.jobs_at_once,
            additional_parameters={"requeue": True, "open_mode": "append", **config.additional_parameters}, **given,
        )  # fmt: skip
        return executor

    def _queue(self) -> set[str] | None:
        """Numbers of this user's jobs in SLURM's queue (pending, running, completing); None: squeue failed, which is
        said once in a row."""
        command = ["squeue", "--noheader", "--array", "--format=%i", "--user", str(os.getuid())]
        try:
            queued = set(_slurm(command).split())
        except NoAnswer as error:
            if not self._told:
                self._screen.say(f"squeue: {error}; all jobs count as in the queue until it answers")
            self._told = f"but squeue fails: {error}"
            return None
        self._told = ""
        return queued

    def _gone(self, queued: set[str] | None, now: float) -> list[Submitted]:
        for one in self._running:
            if queued is None or one.number in queued:
                one.seen = now
        again = {one.number for one in self._running if one.job.state() in UNENDED and not self._ending}
        for one in self._running:
            if one.number in again and not one.said and now > one.seen + SAY_S:
                one.said = True
                self._screen.say(
                    f"batch job {one.number} has left SLURM's queue unfinished; waiting {REQUEUE_S:.0f} s for it to be "
                    "queued again"
                )
        return [one for one in self._running if now > one.seen + (REQUEUE_S if one.number in again else 0.0)]

    def _end(self, number: signal.Signals) -> None:
        """scancel: SIGTERM to the runs, which save; after KillWait, SLURM kills those that have not ended."""
        if self._running:
            try:
                _slurm(["scancel", *(one.number for one in self._running)])
            except NoAnswer as error:
                self._screen.say(f"scancel: {error}; jobs may go on: squeue --me shows them")

    def _kill(self) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def _signals(self) -> Iterator[None]:
        with super()._signals():
            for number in set(heeded_signals()) - {signal.SIGINT, signal.SIGTERM}:
                signal.signal(number, signal.SIG_DFL)  # the batch jobs do not need this process
            yield


def _slurm(command: list[str]) -> str:
    """What one of SLURM's commands prints, whatever its user's variables (SQUEUE_STATES, SCANCEL_INTERACTIVE) say."""
    own = ("SQUEUE_", "SCANCEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return answer_of(command, env=env).decode(errors="replace")


def run_on_slurm(work: Work, config: SlurmConfig) -> signal.Signals | None:
    """The launcher: Launch.run."""
    # sbatch passes on environment variables, but not this script's entry in sys.path
    os.environ["PYTHONPATH"] = python_path(work.ledger.project.root)
    return Batch(work, config).run()
