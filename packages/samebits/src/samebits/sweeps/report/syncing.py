"""The command `sync`: upload missing records of runs to W&B and MLflow, after offline logging, a kill or an outage."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from samebits.errors import INTERRUPTED, ConfigError, file_error, plain_output
from samebits.files import amount
from samebits.loggers import check_online, logs_to_wandb, sync_mlflow, upload_run, write_offline
from samebits.programs import NoAnswer, slurm
from samebits.project import Project
from samebits.runs import is_launching, is_running
from samebits.signals import how_to_stop
from samebits.status import METRICS, STATUS, read_status, shown
from samebits.sweeps.report.read import SWEEP, runs_below
from samebits.sweeps.report.wandb_sync import upload_summary

AT_ONCE = 4  # runs that are uploaded in parallel
EVERY_S = 30.0  # seconds between two uploads of --watch
MLFLOW_S = 600.0  # seconds for the upload of one run to MLflow


def sync(project: Project) -> int:
    """Run the command. Return the exit status."""
    parser = argparse.ArgumentParser("./run sync", allow_abbrev=False)
    parser.description = "Upload missing records of runs and sweeps to W&B, MLflow."
    parser.add_argument(
        "directories", nargs="*", type=Path, help="run directories, sweeps, or folders that contain them"
    )
    parser.add_argument("--replay", action="store_true", help="upload the runs again, with new ids")
    parser.add_argument(
        "--offline", type=Path, metavar="FOLDER", help="write offline W&B runs to this folder instead of uploading"
    )
    parser.add_argument("--watch", action="store_true", help="upload again and again until all runs have ended")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help=f"with --watch: seconds between two uploads [{EVERY_S:.0f}]"
    )
    args = parser.parse_args()
    plain_output()
    folders = [path.absolute() for path in args.directories] or [project.root / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                what = "is a file" if folder.is_file() else "no such directory"
                raise ConfigError(f"{folder}: {what}; give run directories, sweeps or folders that contain them")
        if args.watch:
            watch(project, folders, args)
        elif args.every is not None:
            raise ConfigError(f"--every {args.every:g}: has no effect without --watch")
        if args.offline:
            args.offline.mkdir(parents=True, exist_ok=True)
            if not os.access(args.offline, os.W_OK):  # wandb would write to a temporary folder
                raise ConfigError(f"--offline {args.offline}: cannot be written; choose another folder")
        runs = runs_in(folders)
        if not runs:
            print(f"{', '.join(map(shown, folders))}: no runs, so there is nothing to send")
            return 0
        failed = sum(attempt(run, partial(sync_mlflow, project, run, MLFLOW_S)) for run in runs if mode == "online")
        if mode == "online" and not args.replay and not any(logs_to_wandb(project, run) for run in runs):
            print("these runs do not log to W&B")
            return min(failed, 1)
        if mode == "online":
            check_online()
        failed += upload(project, runs, args.replay, args.offline)
        sweeps = dict.fromkeys(path.parent for folder in folders for path in folder.rglob(SWEEP))
        failed += sum(attempt(one, partial(upload_summary, project, one, mode, args.offline)) for one in sweeps)
    except (ConfigError, OSError) as error:
        print(f"error: {file_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if args.watch:
            print("stopped; the same command continues where this one stopped", file=sys.stderr)
        return INTERRUPTED
    return min(failed, 1)


def runs_in(folders: list[Path]) -> list[Path]:
    """Return all run directories in these folders, each once."""
    return list(dict.fromkeys(run for folder in folders for run in runs_below(folder)))


def watch(project: Project, folders: list[Path], args: argparse.Namespace) -> None:
    """Upload new records every few seconds. Return when no run in these folders is running, or queued in a sweep that
    is being run; at once if there are no runs.

    A run is sent when its files have changed since its last complete upload, so waiting costs no requests."""
    every_s = EVERY_S if args.every is None else args.every
    if not every_s >= 1:
        raise ConfigError(f"--every {every_s:g}: give at least 1 second")
    if args.replay or args.offline:
        raise ConfigError(f"--watch: cannot be used with {'--replay' if args.replay else '--offline'}")
    sent: dict[Path, object] = {}
    told: dict[Path, str] = {}
    waiting, checked = "", False
    while True:
        runs = runs_in(folders)
        # before the upload: what is written during it belongs to the next round
        states = {run: (state_of(run), *stamps(run)) for run in runs}
        changed = [run for run in runs if sent.get(run) != states[run]]
        no_wandb = ""
        if not checked and any(logs_to_wandb(project, run) for run in changed):
            try:
                check_online()
                checked = True
            except ConfigError as error:
                if all(logs_to_wandb(project, run) for run in runs):
                    raise
                no_wandb = str(error)  # reported for each run of W&B, while the others are sent to MLflow
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                done = [*pool.map(partial(send, project, told, no_wandb), changed)]
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        sent |= {run: states[run] for run, complete in zip(changed, done) if complete}
        counts = {kind: sum(state[0] == kind for state in states.values()) for kind in ("running", "queued")}
        queued = Counter(run.parent for run, state in states.items() if state[0] == "queued")
        if not counts["running"] and not any(map(is_awaited, queued)):
            for sweep, count in queued.items():
                print(
                    f"{shown(sweep)}: not waiting for {amount(count, 'queued run')}, because no command and no batch "
                    "job runs the sweep; to run the rest of it, repeat its command"
                )
            for run in [run for run, state in states.items() if state[0] == "preempted"]:
                print(f"{shown(run)}: preempted, not running; to resume it: ./run train resume={shown(run)}")
            return
        now = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        if now != waiting:
            waiting = now
            print(f"watching {now}; {how_to_stop()}", flush=True)
        time.sleep(every_s)


def state_of(run: Path) -> str:
    """Return running, queued, preempted or ended. A preempted job of a sweep is queued, because the sweep's command
    resumes it."""
    if is_running(run):
        return "running"
    state = str(read_status(run).get("status"))
    if state == "preempted" and (run.parent / SWEEP).exists():
        return "queued"
    return state if state in ("queued", "preempted") else "ended"


def is_awaited(sweep: Path) -> bool:
    """Return True if the jobs of this sweep that are queued, or were preempted, may start without a new command: a
    command runs the sweep, or SLURM's queue has batch jobs of it. If squeue fails, they are assumed to be there."""
    if is_launching(sweep):
        return True
    scripts = [path.name for path in (sweep / ".slurm").glob("*.sh")]
    if not scripts:
        return False
    try:
        listed = slurm(["squeue", "--noheader", "--format=%o", "--user", str(os.getuid())])
    except NoAnswer:
        return True
    return any(name in listed for name in scripts)


def stamps(run: Path) -> list[object]:
    """Return inode, size and time of the files that a run writes; they change with each record and each status."""
    found: list[object] = []
    for name in (METRICS, STATUS):
        try:
            known = os.lstat(run / name)
        except OSError:
            continue
        found += [name, known.st_ino, known.st_size, known.st_mtime_ns]
    return found


def send(project: Project, told: dict[Path, str], no_wandb: str, run: Path) -> bool:
    """Upload the new records of one run to MLflow and W&B. Return True if both succeeded. told: {run: its last printed
    line}, which is not printed twice. no_wandb: why nothing can be sent to W&B."""

    def to_wandb() -> str | None:
        if no_wandb and logs_to_wandb(project, run):
            raise ConfigError(no_wandb)
        return upload_run(project, run, False)

    lines = []
    complete = True
    for name, work in (("MLflow", partial(sync_mlflow, project, run, MLFLOW_S)), ("W&B", to_wandb)):
        try:
            said = work()
        except Exception as error:
            said, complete = f"failed: {type(error).__name__}: {error}", False
        if said:
            lines.append(f"{name}: {said.partition('; it is still')[0]}")
    text = f"{os.path.relpath(run)}: {'; '.join(lines)}"
    if lines and told.get(run) != text:
        told[run] = text
        print(text, file=sys.stdout if complete else sys.stderr, flush=True)
    return complete


def upload(project: Project, runs: list[Path], anew: bool, folder: Path | None) -> int:
    """Upload the runs. Return the number of failed uploads. anew: upload all records, with new ids."""
    if folder is not None:
        return sum(attempt(run, partial(write_offline, project, run, folder)) for run in runs)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each thread waits for its own process
        failed = sum(pool.map(lambda run: attempt(run, partial(upload_run, project, run, anew)), runs))
    running = sum(map(is_running, runs))
    if failed:
        print(f"{failed} of {amount(len(runs), 'run')} failed: repeat the command to send what is lacking in W&B")
    elif running:
        print(f"nothing is lacking in W&B, except later records of {amount(running, 'running run')}")
    else:
        print("nothing is lacking in W&B")
    return failed


def attempt(what: Path, work: Callable[[], str | None]) -> int:
    """Run `work` and print its result. Return 1 if it raised, so that the other uploads continue, otherwise 0."""
    try:
        done = work()
    except Exception as error:
        print(f"failed: {os.path.relpath(what)}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if done:
        print(f"{os.path.relpath(what)}: {done}")
    return 0
