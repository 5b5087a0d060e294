"""Upload what was logged offline to Weights & Biases: runs, sweeps, whole folders; resumed runs as one run.

    ./run sync                                # all below outputs/
    ./run sync outputs/default/sweeps/lr
    ./run sync RUN_DIR --replay               # write the run anew from metrics.jsonl, whatever was uploaded

Exit status: 0 all is there, 1 an upload failed, 2 a mistake in what was asked.
"""

from __future__ import annotations

import engine.interpreter  # noqa: F401 - first

# isort: split
import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description="Upload runs and sweeps that were logged offline to W&B.")
    parser.add_argument("directories", nargs="*", type=Path, help="run directories, sweeps, folders of them")
    parser.add_argument("--replay", action="store_true", help="write the runs anew from their metrics.jsonl")
    parser.add_argument("--offline", type=Path, metavar="FOLDER", help="replay into offline runs there, to look at")
    parser.add_argument("--summary", action="store_true", help="only the summaries of sweeps")
    args = parser.parse_args()
    import lab  # noqa: F401 - the project that the engine reads the runs of
    from engine.config import ROOT
    from engine.errors import ConfigError
    from engine.runs import auto_wandb_mode, wandb_reachable
    from engine.sweeps import SWEEP, runs_below

    folders = [path.absolute() for path in args.directories] or [ROOT / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no such directory; give run directories, sweeps or folders of them")
        if mode == "online" and not args.summary:
            if auto_wandb_mode() == "offline":
                raise ConfigError(
                    "no key of W&B's is configured (wandb login, or WANDB_API_KEY), or WANDB_MODE=offline"
                )
            if not wandb_reachable(10.0):
                raise ConfigError("W&B's server cannot be reached (WANDB_BASE_URL, if it is one of your own)")
        runs = [] if args.summary else [run for folder in folders for run in runs_below(folder)]
        failed = upload(runs, mode, args.replay, args.offline)
        sweeps = dict.fromkeys(path.parent for folder in folders for path in folder.rglob(SWEEP))
        failed += summaries(list(sweeps), None if args.summary else mode, args.offline)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return min(failed, 1)


def upload(runs: list[Path], mode: str, anew: bool, folder: Path | None) -> int:
    """Returns the number of failed uploads. anew: replay all runs from their metrics.jsonl."""
    from engine.sweeps import offline_parts, replay_run, upload_parts, upload_plan

    failed, whole = 0, []
    for run in runs:
        what = "replay" if anew or folder else upload_plan(run)
        if what == "sync":
            whole += offline_parts(run)
        elif what == "replay":
            failed += attempt(run, partial(replay_run, run, mode, folder))
        elif what == "running":
            print(f"{os.path.relpath(run)}: is running, later")
    if whole:
        failed += attempt(Path(f"{len(whole)} runs"), partial(upload_parts, whole))
    elif runs:
        print("nothing more to upload")
    return failed


def summaries(sweeps: list[Path], mode: str | None, folder: Path | None) -> int:
    """Returns the number of failed uploads of sweep summaries."""
    from engine.sweeps import upload_summary

    return sum(attempt(sweep, partial(upload_summary, sweep, mode, folder)) for sweep in sweeps)


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
