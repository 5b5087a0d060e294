"""Run a sweep from its due jobs to its exit status, with any launcher and any sweeper."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from samebits.config import check_job_name
from samebits.errors import PREEMPTED, ConfigError, RunFailed
from samebits.files import amount
from samebits.project import Program
from samebits.runs import launching
from samebits.schema import plain, typed
from samebits.status import shown
from samebits.sweeps import plan
from samebits.sweeps.ledger import ENDED, Job, Ledger, record_code
from samebits.sweeps.options import SweepConfig
from samebits.sweeps.progress import say
from samebits.sweeps.screen import table
from samebits.world import run_rendezvous

HYDRAS_SUBDIR = "${hydra.job.num}"  # Hydra's default; only its basic sweeper uses it


@dataclass(frozen=True)
class Work:
    """Input of a launcher. jobs: the jobs to run; take the next one when it can start. total: number of all jobs of the
    command, as far as known. on_end(job): must be called in this process after each job."""

    ledger: Ledger
    jobs: Iterable[Job]
    total: Sequence[Job]
    options: SweepConfig
    on_end: Callable[[Job], object] = lambda job: None


def sweep(
    project: Program, master: DictConfig, loader: ConfigLoader, launcher: Launcher, arguments: Sequence[str]
) -> None:
    """Run every combination of the values in `arguments` that has not ended. master: the config of the command.

    Raise ConfigError before anything is written. When the
    jobs have ended, raise RunFailed if some failed, SystemExit(75) if the sweep was stopped early.
    """
    options, ledger = opened(project, master)
    swept = [*ledger.swept, *plan.swept_keys(arguments)]
    composer = plan.Composer(project, loader, master, Path(master.hydra.runtime.cwd), ledger.directory, swept)
    combinations = plan.expand(project, arguments, loader, ledger.swept, composer.cwd, options.zip)
    new = plan.compose(ledger, combinations, composer)
    if difference := plan.unlike(ledger, ledger.jobs, list(new.values()), composer):
        say(difference)
    jobs = plan.write(ledger, combinations, new, arguments, composer.follows)
    due = ledger.due(jobs, options.retry_failed)
    chosen = {job.key for job in due}
    plan.adapt(ledger, [c for c, job in zip(combinations, jobs) if job.key in chosen], due, composer)
    watches = not getattr(launcher, "detached", False)
    say(f"sweep {ledger.name}: {outlook(ledger, jobs, due, watches)}\n  {shown(ledger.directory)}")
    if due and (difference := record_code(ledger)):
        say(difference)
    stopped = run_sweep(launcher, Work(ledger, due, jobs, options)) if due else None
    conclude(ledger, jobs, stopped, changed=bool(due), left=getattr(launcher, "left", None))


def opened(project: Program, master: DictConfig) -> tuple[SweepConfig, Ledger]:
    """Return the checked options and the ledger of a sweep. Raise ConfigError for invalid or conflicting options."""
    if run_rendezvous.followers():
        raise ConfigError(
            "-m under torchrun or srun: start a sweep with the plain command; its jobs start their own processes"
        )
    if plain(master.resume) not in (None, "auto"):
        raise ConfigError("resume: only for single runs - remove it; to resume a sweep, give sweep=NAME again")
    given = {override.partition("=")[0]: override for override in plain(master.hydra.overrides.hydra, resolve=False)}
    check_job_name(master, master.hydra)
    if "hydra.run.dir" in given and "hydra.sweep.dir" not in given:
        raise ConfigError(f"{given['hydra.run.dir']}: has no effect on a sweep's jobs - remove it, and give sweep=NAME")
    subdir = plain(master.hydra.sweep, resolve=False)["subdir"]
    if subdir != HYDRAS_SUBDIR:
        raise ConfigError(
            f"hydra.sweep.subdir={subdir}: has no effect, as a job's directory is named by its values - remove it; "
            "hydra.sweep.dir sets the sweep's directory"
        )
    options = typed(SweepConfig, master.sweep, "sweep")
    if options.job is not None:
        raise ConfigError(f"sweep.job={options.job}: is for launchers, which start one job - remove it, or -m")
    if options.name is not None and not re.fullmatch(r"[\w+-][\w.+-]*", options.name):
        raise ConfigError(f"sweep={options.name}: must be a folder name of letters, digits and . _ + -")
    return options, Ledger(project, Path(master.hydra.sweep.dir).absolute())


def outlook(ledger: Ledger, jobs: Sequence[Job], due: Sequence[Job], watches: bool = True) -> str:
    """Return the line that is printed before the start: numbers of jobs, jobs to run, and ended jobs. watches: False if
    jobs may run already, started by an earlier command that did not wait for them."""
    chosen = {job.key for job in due}
    others = [job.state() for job in jobs if job.key not in chosen]
    parts = ahead(amount(len(jobs), "job"), len(due), sum(job.state() != "queued" for job in due), others)
    if not watches:
        parts[1] = f"{len(due):,} not ended"
    if more := len(ledger.jobs) - len(jobs):
        parts.append(f"{more:,} more from other commands")
    return ", ".join(parts)


def ahead(total: str, to_run: int, go_on: int, before: Sequence[str]) -> list[str]:
    """Return the parts of the line before the start. go_on: number of jobs that resume. before: states of ended
    jobs."""
    parts = [total, f"{to_run:,} to run" + (f" ({go_on:,} resume)" if go_on else "")]
    return [*parts, *(f"{before.count(state):,} {state} before" for state in dict.fromkeys(before))]


def run_sweep(launcher: Launcher, work: Work) -> signal.Signals | None:
    """Run the jobs until all have ended. Return the signal that stopped them early, or None.

    A launcher of this project has a method `run_jobs(work)`. Other Hydra launchers get the run directories as
    overrides; train.py reads sweep.job first, and ignores the rest of the config that such a launcher composes."""
    with launching(work.ledger.directory):
        if hasattr(launcher, "run_jobs"):
            return launcher.run_jobs(work)
        return run_with(launcher, work)


def run_with(launcher: Launcher, work: Work) -> signal.Signals | None:
    """Run the jobs with a launcher that is not of this project. Return SIGINT if Ctrl-C has ended it, or None."""
    jobs, stopped = list(work.jobs), None
    try:
        launcher.launch([[f"sweep.job='{job.directory}'", f"hydra.sweep.subdir='{job.key}'"] for job in jobs], 0)
    except KeyboardInterrupt:
        stopped = signal.SIGINT
    except Exception as error:  # some launchers raise if a job was lost; each job's state is in its directory
        say(f"hydra/launcher: {type(error).__name__}: {error}")
    for job in jobs:
        work.on_end(job)
    return stopped


def conclude(
    ledger: Ledger, jobs: Sequence[Job], stopped: signal.Signals | None, changed: bool = True, left: int | None = None
) -> None:
    """Print the table and write the report. Raise KeyboardInterrupt after Ctrl-C, RunFailed if jobs failed,
    SystemExit(75) if the sweep was stopped early. changed: True if a job has run since the last report. left: None, or
    the jobs run without this process, except for this number, which must be started later."""
    states = [job.state() for job in jobs]
    whole = [job.state() for job in ledger.jobs]
    added = f"of this command {counted(states)}; of the whole sweep {counted(whole)}"
    say(f"\n{table(ledger, jobs)}\n\nsweep {ledger.name}: {added if len(whole) > len(states) else counted(states)}")
    if left is None or {"failed", *ENDED} & {*whole}:
        report(ledger, changed)
    stop_here(ledger, stopped, unfinished=stopped is not None)
    if failed := states.count("failed"):
        retry = f"add sweep={ledger.name} sweep.retry_failed=true to run them again"
        of_command = " of this command" * (len(whole) > len(states))
        raise RunFailed(f"{failed:,} of {amount(len(states), 'job')}{of_command} failed; {retry}")
    if left is None:
        stop_here(ledger, None, bool({"preempted", "interrupted", "queued", "running"} & set(states)))
    elif unfinished := sum(state not in ENDED for state in states):
        say(f"{amount(unfinished, 'job')} not ended; to look again, repeat the command with sweep={ledger.name}")
        if left:
            raise SystemExit(PREEMPTED)


def stop_here(ledger: Ledger, stopped: signal.Signals | None, unfinished: bool) -> None:
    """Raise KeyboardInterrupt after Ctrl-C, SystemExit(75) if the sweep is unfinished. Print how to resume it."""
    again = f"to resume it, repeat the command with sweep={ledger.name}"
    if stopped == signal.SIGINT:
        say(f"stopped by Ctrl-C; {again}")
        raise KeyboardInterrupt
    if unfinished:
        say(f"stopped early; {again}")
        raise SystemExit(PREEMPTED)


def report(ledger: Ledger, changed: bool) -> None:
    """Write the sweep's report if `changed` or if there is none, and print the paths of its pages."""
    if changed or not (ledger.directory / "report.md").exists():
        from samebits.sweeps.report import write

        write(ledger.project, ledger.directory)
    for name in ("report.md", "report.html"):
        if (path := ledger.directory / name).exists():
            say(f"  {shown(path)}")


def counted(states: Sequence[str]) -> str:
    """Return the number of jobs in each state as text: 3 finished, 1 failed."""
    return ", ".join(f"{states.count(state):,} {state}" for state in dict.fromkeys(states))
