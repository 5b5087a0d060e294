"""A job's process below the pool: its setup, and the failure record of one that died without writing it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits import early_signals
from samebits.children import die_with, mark_finished, readable_stack, register_heartbeat
from samebits.errors import DirectoryLockedError, RunFailed
from samebits.files import no_links, read_text
from samebits.project import Program
from samebits.runs import claimed
from samebits.signals import LIKELY_CAUSES, STOP_SIGNALS, heeded_signals
from samebits.status import record_failure, write_status
from samebits.sweeps.job import run_job
from samebits.sweeps.ledger import Job

OUTPUT, FAULT = "output.log", "fault.log"  # output of a job among several; its stack when a signal killed it


def record_unexplained(job: Job, error: RunFailed, stopped: signal.Signals | None = None) -> None:
    """Record the end of a job that ended without recording it. stopped: the signal that asked it to end, if any."""
    with suppress(DirectoryLockedError), claimed(job.directory):  # else another process has resumed it already
        if job.state() not in ("queued", "running"):
            return
        if stopped is not None:
            write_status(job.directory, "interrupted" if stopped == signal.SIGINT else "preempted", signal=stopped.name)
            return
        fault = job.directory / FAULT
        trace = readable_stack(read_text(fault, errors="replace")).strip() if fault.exists() else ""
        record_failure(job.directory, 0, error, first=True, stack=f"{error}\n{trace}\n")


def death(exit_code: int) -> RunFailed:
    """Of a job's process that has said nothing."""
    if exit_code >= 0:
        return RunFailed(f"the job ended with status {exit_code}, without an error record; see {OUTPUT}")
    return RunFailed(f"the job was killed by {signal.Signals(-exit_code).name}{LIKELY_CAUSES.get(-exit_code, '')}")


def job_main(
    project: Program, directory: Path, environment: dict[str, str], quiet: bool, parent: int, heartbeats: Any
) -> None:
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which passes it on once
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
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
