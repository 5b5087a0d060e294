"""The command that sends W&B and MLflow what they lack of runs: logged offline, interrupted, cut off by an outage."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from samebits.errors import ConfigError, plain_output
from samebits.loggers import check_online, logs_to_wandb, sync_mlflow, upload_run, write_offline
from samebits.project import Project
from samebits.runs import is_claimed
from samebits.sweeps.report.read import SWEEP, runs_below
from samebits.sweeps.report.wandb_sync import upload_summary

AT_ONCE = 4  # runs
MLFLOW_S = 600.0  # for what MLflow lacks of one run


def sync(project: Project) -> int:
    """Run the command. Return the exit status."""
    parser = argparse.ArgumentParser(
        "./run sync", description="Send to W&B and MLflow what they lack of runs and sweeps."
    )
    parser.add_argument("directories", nargs="*", type=Path, help="run directories, sweeps, folders of them")
    parser.add_argument("--replay", action="store_true", help="send the runs anew, under new ids")
    parser.add_argument(
        "--offline", type=Path, metavar="FOLDER", help="write offline W&B runs there instead, to look at"
    )
    args = parser.parse_args()
    plain_output()
    folders = [path.absolute() for path in args.directories] or [project.root / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no such directory; give run directories, sweeps or folders of them")
        runs = list(dict.fromkeys(run for folder in folders for run in runs_below(folder)))
        failed = sum(attempt(run, partial(sync_mlflow, project, run, MLFLOW_S)) for run in runs if mode == "online")
        if mode == "online" and runs and not args.replay and not any(logs_to_wandb(project, run) for run in runs):
            print("none of these runs logs to W&B")
            return min(failed, 1)
        if mode == "online":
            check_online()
        failed += upload(project, runs, args.replay, args.offline)
        sweeps = dict.fromkeys(path.parent for folder in folders for path in folder.rglob(SWEEP))
        failed += summaries(project, list(sweeps), mode, args.offline)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return min(failed, 1)


def upload(project: Project, runs: list[Path], anew: bool, folder: Path | None) -> int:
    """Returns the number of failed uploads. anew: all of each, under a new id."""
    if folder is not None:
        return sum(attempt(run, partial(write_offline, project, run, folder)) for run in runs)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each waits for a process of its own
        failed = sum(pool.map(lambda run: attempt(run, partial(upload_run, project, run, anew)), runs))
    if runs:
        whole = f"{len(runs) - failed} of {len(runs)} runs: " * bool(failed) + "nothing is lacking in W&B"
        running = sum(map(is_claimed, runs))
        print(f"{whole}, but what {running} running runs log from now on" if running else whole)
    return failed


def summaries(project: Project, sweeps: list[Path], mode: str, folder: Path | None) -> int:
    """Returns the number of failed uploads of sweep summaries."""
    return sum(attempt(sweep, partial(upload_summary, project, sweep, mode, folder)) for sweep in sweeps)


def attempt(what: Path, work: Callable[[], str | None]) -> int:
    """Run `work` and print its result. Returns 1 if it raised, so that the other uploads go on; else 0."""
    try:
        done = work()
    except Exception as error:
        print(f"failed: {os.path.relpath(what)}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if done:
        print(f"{os.path.relpath(what)}: {done}")
    return 0
