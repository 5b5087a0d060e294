"""The process of a job in the pool: its setup, and the failure record of a process that died without writing one."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits import early_signals
from samebits.children import die_with, first_signal, mark_finished, readable_stack, register_heartbeat
from samebits.errors import DirectoryLockedError, RunFailed
from samebits.files import no_links, read_text
from samebits.locks import PATIENCE_S
from samebits.project import Program
from samebits.runs import claimed
from samebits.signals import LIKELY_CAUSES, STOP_SIGNALS, heeded_signals
from samebits.status import record_failure, write_status
from samebits.sweeps.job import run_job
from samebits.sweeps.ledger import Job

# output of a job that runs in parallel with others; its stack trace if a signal killed it
OUTPUT, FAULT = "output.log", "fault.log"
FULL = 1 << 20  # bytes: with less free space, a job may be unable to record its error
DYING_S = 30.0  # a killed rank holds the lock of its directory until the kernel has freed its memory


def record_unexplained(
    job: Job, error: RunFailed, stopped: signal.Signals | None = None, wait_s: float = PATIENCE_S
) -> bool:
    """Record the end of a job whose process has not recorded it. Return False if another process still holds its
    directory after wait_s seconds: a rank that is dying, or a process that has resumed it.

    stopped: the signal that requested the stop, if any."""
    if not is_unended(job):
        return True
    with suppress(DirectoryLockedError), claimed(job.directory, wait_s):
        if not is_unended(job):
            return True
        if stopped is not None:
            write_status(job.directory, "interrupted" if stopped == signal.SIGINT else "preempted", signal=stopped.name)
            return True
        record_failure(job.directory, 0, error, first=True, stack=f"{error}\n{_fault(job).strip()}\n")
        return True
    return False


def is_unended(job: Job) -> bool:
    """Return True if no process has recorded the end of the job."""
    return job.state() in ("queued", "running")


def _fault(job: Job) -> str:
    """Return what faulthandler has written when the job's process crashed, "" if nothing."""
    fault = job.directory / FAULT
    return readable_stack(read_text(fault, errors="replace")) if fault.exists() else ""


def death(job: Job, exit_code: int) -> RunFailed:
    """Return the error for a job's process that ended without an error record. exit_code: negative for a signal."""
    if exit_code >= 0:
        why = f"see {OUTPUT}"
        if job.directory.exists() and shutil.disk_usage(job.directory).free < FULL:  # OUTPUT is empty then
            why = f"the disk of {job.directory} is full: free some space, then run the job again"
        return RunFailed(f"the job ended with status {exit_code}, without an error record; {why}")
    exit_code = first_signal(exit_code, _fault(job))
    return RunFailed(f"the job was killed by {signal.Signals(-exit_code).name}{LIKELY_CAUSES.get(-exit_code, '')}")


def job_main(
    project: Program, directory: Path, environment: dict[str, str], quiet: bool, parent: int, heartbeats: Any
) -> None:
    """Run one job in a forked process, and exit with its status.

    environment: variables to set. quiet: write stdout and stderr to OUTPUT. parent: process id; the job ends when this
    process ends. heartbeats: the heartbeats that the pool watches.
    """
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches only the parent, which forwards it once
    early_signals.begin_run(own_process=True)
    for number in heeded_signals():
        signal.signal(number, early_signals.note_only)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    die_with(parent)
    register_heartbeat(heartbeats, 0)
    os.environ.update(environment)
    code = 1
    try:
        if quiet:
            print_to(directory / OUTPUT)
        with open(directory / FAULT, "w", opener=no_links) as fault:
            faulthandler.enable(fault)
            code = run_job(project, directory)
            faulthandler.disable()
    except KeyboardInterrupt:
        code = 130
    early_signals.ignore_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    mark_finished()
    raise SystemExit(code)


def print_to(path: Path) -> None:
    """Redirect stdout and stderr of this process and its children to the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
