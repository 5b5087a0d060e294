"""A job in a process of its own below the pool: what it does first, and what is said of one that could not say it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

from engine.app import App, register
from engine.errors import Claimed, RankLost, RunFailed
from engine.ranks import heartbeat
from engine.ranks.parent import die_with
from engine.ranks.stop import SIGNALS, heeded
from engine.runs import directory as run_directory
from engine.runs.directory import no_links
from engine.sweeps.job import run_job
from engine.sweeps.ledger import Job

OUTPUT, FAULT = "output.log", "fault.log"  # what a job of several printed; where it was when a signal killed it


def record_unexplained(job: Job, exit_code: int, stopped: signal.Signals | None, hung: str = "") -> None:
    """A job that was killed, or that ended without a word, cannot say so itself. stopped: it was asked to end.
    hung: why it had to be ended."""
    try:
        with run_directory.claimed(job.directory):
            if job.state() not in ("queued", "running"):
                return
            if stopped is not None:
                state = "interrupted" if stopped == signal.SIGINT else "preempted"
                run_directory.write_status(job.directory, state, signal=stopped.name)
                return
            fault = job.directory / FAULT
            trace = heartbeat.readable(fault.read_text(errors="replace")).strip() if fault.exists() else ""
            if hung:
                error: RunFailed = RankLost(hung)
            elif exit_code < 0:
                name = signal.Signals(-exit_code).name
                memory = " (the kernel does that when memory runs out: see dmesg)" if name == "SIGKILL" else ""
                error = RunFailed(f"the job was killed by {name}{memory}")
            else:
                error = RunFailed(f"the job ended with status {exit_code} and left no word; see {OUTPUT}")
            run_directory.record_failure(job.directory, 0, error, first=True, stack=f"{error}\n{trace}\n")
    except Claimed:  # another process goes on with it already
        return


def job_main(project: App, directory: Path, environment: dict[str, str], quiet: bool, parent: int, hearts: Any) -> None:
    register(project)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which passes it on once
    for number in heeded():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with(parent)
    heartbeat.take(hearts, 0)
    os.environ.update(environment)
    code = 1
    try:
        if quiet:
            print_to(directory / OUTPUT)
        with open(directory / FAULT, "w", opener=no_links) as fault:
            faulthandler.enable(fault)
            code = run_job(directory)
            faulthandler.disable()
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    heartbeat.say_ended()
    raise SystemExit(code)


def print_to(path: Path) -> None:
    """All that this process and those below it print goes there."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
