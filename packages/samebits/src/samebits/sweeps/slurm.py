"""SLURM launcher: submit the jobs of a sweep through submitit as arrays of batch jobs, one run directory per batch job.

    jobs -> sbatch --array -> srun: RunDirectory(directory), in each task of a job -> status.json -> the next

Before the time limit SLURM sends a signal; the run saves, and its batch job is requeued and resumes it. This process
only monitors: if it ends, the batch jobs continue, and a repeated command finds their results.
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

FOLDER = ".slurm"  # folder of submitit's files in the sweep's directory
NUMBER = "slurm_job"  # file in a job's directory with the number of its batch job
POLL_S = 2.0
UNENDED = ("queued", "running", "preempted")  # states after which SLURM may run a job again
SAY_S = 5.0
REQUEUE_S = 60.0  # seconds for which squeue may not list a job that is being requeued


class RunDirectory:
    """The callable that submitit runs in each task of a batch job, also after a requeue."""

    def __init__(self, project: Program) -> None:
        self._project = project  # unpickling it imports the project in the batch job

    def __call__(self, directory: str) -> None:
        """Run or resume the job in `directory`; exit with its status, or let submitit requeue it."""
        become_rank()
        print_to(Path(directory) / OUTPUT)
        if run_rendezvous.follows():
            from samebits.process import join

            status = join(self._project)
            status = 0 if status == PREEMPTED else status  # a failed task could end rank 0 before it requeues the job
        else:
            try:
                status = run_job(self._project, Path(directory))
            finally:
                run_rendezvous.release()
            # after SIGTERM SLURM requeues the job itself (preemption), or the user has cancelled it (scancel)
            if status == PREEMPTED and read_json(Path(directory) / STATUS).get("signal") != "SIGTERM":
                from submitit.core.job_environment import JobEnvironment

                signal.raise_signal(JobEnvironment._usr_sig())  # submitit requeues the job and ends this process
        if status:
            raise SystemExit(status)  # shown by sacct

    def checkpoint(self, directory: str) -> Any:
        """Return the submission that resumes the job, for submitit's requeue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, directory)


@dataclass
class Submitted:
    """A submitted batch job."""

    job: Job
    number: str  # in SLURM, e.g. 17_3
    began: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)  # monotonic time at which it was last in the queue
    said: bool = False  # a line that it has left the queue was printed


class Batch(Launch):
    """The batch jobs, from their submission until they have left SLURM's queue."""

    AGAIN = "leave them alone"

    def __init__(self, work: Work, config: SlurmConfig) -> None:
        super().__init__(work, config.jobs_at_once)
        self._config = config
        self._running: list[Submitted] = []
        self._told = ""  # why squeue failed

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
                record_unexplained(one.job, RunFailed(f"batch job {one.number} ended without an error record; {told}"))
                self._tell(one.job, time.monotonic() - one.began)

    def _adopt(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Yield the jobs to submit. Jobs that an earlier command left in SLURM's queue are only monitored."""
        queued: set[str] | None = None
        for job in jobs:
            known = job.directory / NUMBER
            number = read_text(known) if known.exists() else ""
            if number and queued is None and (queued := self._queue()) is None:
                raise RunFailed(
                    f"job {job.number} may still be in SLURM's queue ({number}), {self._told}; try again later"
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
        self._screen.say(f"{len(jobs)} batch jobs submitted, {numbers[0]} to {numbers[-1]}; squeue --me lists them")

    def _executor(self) -> Any:
        import submitit

        config = self._config
        folder = self._work.ledger.directory / FOLDER / "%j"
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=config.max_num_timeout)
        except RuntimeError as error:  # sbatch is missing
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
        """Return the numbers of this user's jobs in SLURM's queue (pending, running, completing). None: squeue failed;
        the first failure in a row is printed."""
        command = ["squeue", "--noheader", "--array", "--format=%i", "--user", str(os.getuid())]
        try:
            queued = set(_slurm(command).split())
        except NoAnswer as error:
            if not self._told:
                self._screen.say(f"squeue: {error}; all jobs are assumed to be in the queue until it works again")
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
                    "requeued"
                )
        return [one for one in self._running if now > one.seen + (REQUEUE_S if one.number in again else 0.0)]

    def _end(self, number: signal.Signals) -> None:
        """Cancel the batch jobs: SLURM sends SIGTERM, the runs save; after KillWait it kills those that have not
        ended."""
        if self._running:
            try:
                _slurm(["scancel", *(one.number for one in self._running)])
            except NoAnswer as error:
                self._screen.say(f"scancel: {error}; jobs may still be running: squeue --me lists them")

    def _kill(self) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def _signals(self) -> Iterator[None]:
        with super()._signals():
            for number in set(heeded_signals()) - {signal.SIGINT, signal.SIGTERM}:
                signal.signal(number, signal.SIG_DFL)  # the batch jobs do not need this process
            yield


def _slurm(command: list[str]) -> str:
    """Return the output of a SLURM command, run without the user's settings (SQUEUE_STATES, SCANCEL_INTERACTIVE)."""
    own = ("SQUEUE_", "SCANCEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return answer_of(command, env=env).decode(errors="replace")


def run_on_slurm(work: Work, config: SlurmConfig) -> signal.Signals | None:
    """Run the jobs as SLURM batch jobs. Return the signal that stopped them early, or None."""
    # sbatch passes environment variables to the jobs, but not this script's entry in sys.path
    os.environ["PYTHONPATH"] = python_path(work.ledger.project.root)
    return Batch(work, config).run()
