"""Send to Weights & Biases and MLflow what they lack of runs: logged offline, interrupted, cut off by an outage.

    ./run sync                                # all below outputs/
    ./run sync outputs/default/sweeps/lr
    ./run sync RUN_DIR --replay               # the whole run as a new W&B run, of a new id

Exit status: 0 all is there (or running), 1 something is not, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

AT_ONCE = 4  # runs
MLFLOW_S = 600.0  # for what MLflow lacks of one run


def main() -> int:
    parser = argparse.ArgumentParser(description="Send to W&B and MLflow what they lack of runs and sweeps.")
    parser.add_argument("directories", nargs="*", type=Path, help="run directories, sweeps, folders of them")
    parser.add_argument("--replay", action="store_true", help="send the runs anew, under new ids")
    parser.add_argument(
        "--offline", type=Path, metavar="FOLDER", help="write offline W&B runs there instead, to look at"
    )
    args = parser.parse_args()
    from lab.project import PROJECT
    from samebits.errors import ConfigError, plain_output
    from samebits.loggers import check_online, logs_to_wandb, sync_mlflow
    from samebits.sweeps.report import SWEEP, runs_below

    plain_output()
    folders = [path.absolute() for path in args.directories] or [PROJECT.root / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no such directory; give run directories, sweeps or folders of them")
        runs = list(dict.fromkeys(run for folder in folders for run in runs_below(folder)))
        failed = sum(attempt(run, partial(sync_mlflow, PROJECT, run, MLFLOW_S)) for run in runs if mode == "online")
        if mode == "online" and runs and not args.replay and not any(logs_to_wandb(PROJECT, run) for run in runs):
            print("none of these runs logs to W&B")
            return min(failed, 1)
        if mode == "online":
            check_online()
        failed += upload(runs, args.replay, args.offline)
        sweeps = dict.fromkeys(path.parent for folder in folders for path in folder.rglob(SWEEP))
        failed += summaries(list(sweeps), mode, args.offline)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return min(failed, 1)


def upload(runs: list[Path], anew: bool, folder: Path | None) -> int:
    """Returns the number of failed uploads. anew: all of each, under a new id."""
    from lab.project import PROJECT
    from samebits.loggers import upload_run, write_offline
    from samebits.runs import is_claimed

    if folder is not None:
        return sum(attempt(run, partial(write_offline, PROJECT, run, folder)) for run in runs)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each waits for a process of its own
        failed = sum(pool.map(lambda run: attempt(run, partial(upload_run, PROJECT, run, anew)), runs))
    if runs:
        whole = f"{len(runs) - failed} of {len(runs)} runs: " * bool(failed) + "nothing is lacking in W&B"
        running = sum(map(is_claimed, runs))
        print(f"{whole}, but what {running} running runs log from now on" if running else whole)
    return failed


def summaries(sweeps: list[Path], mode: str, folder: Path | None) -> int:
    """Returns the number of failed uploads of sweep summaries."""
    from lab.project import PROJECT
    from samebits.sweeps.report import upload_summary

    return sum(attempt(sweep, partial(upload_summary, PROJECT, sweep, mode, folder)) for sweep in sweeps)


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


if __name__ == "__main__":
    sys.exit(main())
