"""Ray launcher: each job is a task of a Ray cluster that starts its own process on a node.

    jobs -> Ray's queue -> a node: ./run train sweep.job=DIRECTORY -> status.json -> the next

If a node is lost, Ray runs its tasks again and the jobs resume from their last checkpoints. If this process ends, its
tasks end too; repeat the command to resume them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.children import die_with
from samebits.code import python_path
from samebits.config import quote_value
from samebits.errors import ConfigError, first_line
from samebits.host import limited_to
from samebits.sweeps.job import ELSEWHERE
from samebits.sweeps.job_process import DYING_S, OUTPUT, death, record_unexplained
from samebits.sweeps.launching import Launch
from samebits.sweeps.ledger import Job
from samebits.sweeps.options import RayConfig

if TYPE_CHECKING:
    from samebits.sweeps.drive import Work

TICK_S = 0.3
LAST_LIFE_S = 20.0  # seconds for which a job's old process may hold its lock after its node was lost
PASSED_ON = ("WANDB_", "MLFLOW_", "ADDRESS_")  # set for the jobs, because a node has the environment of its `ray start`


def run_directory(root: Path, directory: str, environment: dict[str, str]) -> int:
    """Run a job's process in a Ray task. Return its exit status. ray.cancel (KeyboardInterrupt) makes it save and
    stop."""
    command = [sys.executable, str(root / "src/train.py"), f"sweep.job={quote_value(directory)}"]
    environment = {**os.environ, "PYTHONPATH": python_path(root), **environment}
    until = time.monotonic() + LAST_LIFE_S
    code = ELSEWHERE
    while code == ELSEWHERE and time.monotonic() < until:
        with open(Path(directory) / OUTPUT, "a") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )  # fmt: skip
        try:
            while process.poll() is None:  # poll, because ray.cancel does not interrupt a wait
                time.sleep(TICK_S)
            code = process.returncode
        except KeyboardInterrupt:
            process.terminate()
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # kill the ranks and workers of a killed job
                os.killpg(process.pid, signal.SIGKILL)
    return code


class Tasks(Launch):
    """The jobs that are queued or running in Ray."""

    def __init__(self, work: Work, config: RayConfig) -> None:
        import ray

        super().__init__(work, config.jobs_at_once)
        self._config = config
        self._running: dict[Any, tuple[Job, float]] = {}
        self._asked: dict[Any, bool] = {}  # cancelled tasks; True: killed
        self._killing = False
        gpus = config.gpus_per_job
        gpus = float(bool(ray.cluster_resources().get("GPU"))) if gpus == "auto" else float(gpus)
        # max_calls: do not use a worker again in which a job was cancelled
        task: Any = ray.remote(max_calls=1, max_retries=config.max_retries)
        self._task = task(run_directory).options(
            num_cpus=config.cpus_per_job, num_gpus=gpus, resources=dict(config.resources)
        )
        wanted = {"CPU": config.cpus_per_job, "GPU": gpus, **config.resources}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            needs = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount)
            self._screen.say(f"hydra.launcher: no node of the cluster has {needs}: the jobs wait for one that has")
        self._environment = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}
        self._environment |= limited_to(config.cpus_per_job)

    def _start(self, job: Job) -> Any:
        return self._task.remote(self._work.ledger.project.root, str(job.directory), self._environment)

    def _run(self) -> None:
        import ray

        source = iter(self._work.jobs)
        while True:
            while not self._ending and len(self._running) < self._config.jobs_at_once:
                if (job := next(source, None)) is None:
                    break
                self._running[self._start(job)] = job, time.monotonic()
            if not self._running:
                return
            for done in ray.wait(list(self._running), timeout=TICK_S)[0]:
                self._ended(done, *self._running.pop(done))
            if self._ending:
                self._cancel()

    def _ended(self, done: Any, job: Job, began: float) -> None:
        import ray

        try:
            code = ray.get(done)
        except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):
            code = 0  # the job never started
        except (
            ray.exceptions.RayError
        ) as error:  # the node was lost and max_retries is used up; repeating the command resumes the job
            self._screen.say(f"job {job.number}: {first_line(error)}")
            code = ELSEWHERE
        if code not in (0, ELSEWHERE):
            record_unexplained(job, death(job, code), signal.SIGTERM if self._ending else None, DYING_S)
        if self._ending and job.state() == "queued":
            return
        self._tell(job, time.monotonic() - began, "lost" if job.state() == "running" else None)

    def _cancel(self) -> None:
        import ray

        for task in self._running:
            # only once, because a second KeyboardInterrupt would interrupt the save
            if self._asked.get(task) != self._killing:
                self._asked[task] = self._killing
                ray.cancel(task, force=self._killing)

    def _end(self, number: signal.Signals) -> None:
        """Let the loop cancel the tasks, because a signal handler must not call Ray within another call of Ray."""

    def _kill(self) -> None:
        self._killing = True


def run_on_ray(work: Work, config: RayConfig) -> signal.Signals | None:
    """Run the jobs on a Ray cluster. Return the signal that stopped them early, or None."""
    address = config.address or os.environ.get("RAY_ADDRESS")
    try:
        if found := re.fullmatch(r"([^/]+):(\d+)", address or ""):  # check first, because Ray would retry for minutes
            socket.create_connection((found[1].strip("[]"), int(found[2])), 10).close()
            os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # if it is another program: each takes 40 s
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:  # OSError includes ConnectionError
        raise ConfigError(
            f"hydra.launcher.address={address}: {first_line(error)} - check the cluster with `ray status`"
        ) from None
    try:
        return Tasks(work, config).run()
    finally:
        ray.shutdown()  # also ends tasks that are left after an exception
