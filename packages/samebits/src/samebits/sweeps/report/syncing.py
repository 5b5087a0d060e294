"""The command `sync`: upload missing records of runs to W&B and MLflow, after offline logging, a kill or an outage."""

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

AT_ONCE = 4  # runs that are uploaded in parallel
MLFLOW_S = 600.0  # seconds for the upload of one run to MLflow


def sync(project: Project) -> int:
    """Run the command. Return the exit status."""
    parser = argparse.ArgumentParser(
        "./run sync", description="Upload missing records of runs and sweeps to W&B, MLflow."
    )
    parser.add_argument(
        "directories", nargs="*", type=Path, help="run directories, sweeps, or folders that contain them"
    )
    parser.add_argument("--replay", action="store_true", help="upload the runs again, with new ids")
    parser.add_argument(
        "--offline", type=Path, metavar="FOLDER", help="write offline W&B runs to this folder instead of uploading"
    )
    args = parser.parse_args()
    plain_output()
    folders = [path.absolute() for path in args.directories] or [project.root / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"{folder}: no such directory; give run directories, sweeps or folders that contain them"
                )
        runs = list(dict.fromkeys(run for folder in folders for run in runs_below(folder)))
        failed = sum(attempt(run, partial(sync_mlflow, project, run, MLFLOW_S)) for run in runs if mode == "online")
        if mode == "online" and runs and not args.replay and not any(logs_to_wandb(project, run) for run in runs):
            print("these runs do not log to W&B")
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
    """Upload the runs. Return the number of failed uploads. anew: upload all records, with new ids."""
    if folder is not None:
        return sum(attempt(run, partial(write_offline, project, run, folder)) for run in runs)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each thread waits for its own process
        failed = sum(pool.map(lambda run: attempt(run, partial(upload_run, project, run, anew)), runs))
    if runs:
        whole = f"{len(runs) - failed} of {len(runs)} runs: " * bool(failed) + "nothing is lacking in W&B"
        running = sum(map(is_claimed, runs))
        print(f"{whole}, except later records of {running} runs that are still running" if running else whole)
    return failed


def summaries(project: Project, sweeps: list[Path], mode: str, folder: Path | None) -> int:
    """Upload sweep summaries. Return the number of failed uploads."""
    return sum(attempt(sweep, partial(upload_summary, project, sweep, mode, folder)) for sweep in sweeps)


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
