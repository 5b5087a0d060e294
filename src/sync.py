"""Upload what was logged offline to Weights & Biases: runs, sweeps, whole folders; resumed runs as one run.

    python src/sync.py                                # all below outputs/
    python src/sync.py outputs/default/sweeps/lr
    python src/sync.py RUN_DIR --replay               # write the run anew from metrics.jsonl, whatever was uploaded

Exit status: 0 all is there, 1 an upload failed, 2 a mistake in what was asked.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description="Upload runs and sweeps that were logged offline to W&B.")
    parser.add_argument("directories", nargs="*", type=Path, help="run directories, sweeps, folders of them")
    parser.add_argument("--replay", action="store_true", help="write the runs anew from their metrics.jsonl")
    parser.add_argument("--offline", action="store_true", help="replay into new offline runs, to look at them")
    parser.add_argument("--summary", action="store_true", help="only the summaries of sweeps")
    args = parser.parse_args()
    from lab.compose import ROOT
    from lab.errors import ConfigError
    from lab.report.read import SWEEP, runs_below
    from lab.wandb_log import auto_mode, reachable

    folders = [path.absolute() for path in args.directories] or [ROOT / "outputs"]
    mode = "offline" if args.offline else "online"
    try:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no such directory; give run directories, sweeps or folders of them")
        if mode == "online" and not args.summary:
            if auto_mode() == "offline":
                raise ConfigError(
                    "no key of W&B's is configured (wandb login, or WANDB_API_KEY), or WANDB_MODE=offline"
                )
            if not reachable(10.0):
                raise ConfigError("W&B's server cannot be reached (WANDB_BASE_URL, if it is one of your own)")
        failed = 0 if args.summary else upload([run for f in folders for run in runs_below(f)], mode, args.replay)
        for sweep in dict.fromkeys(path.parent for folder in folders for path in folder.rglob(SWEEP)):
            from lab.wandb_sync import summarise

            if name := summarise(sweep, None if args.summary else mode):
                print(f"{os.path.relpath(sweep)}: {name}")
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return min(failed, 1)


def upload(runs: list[Path], mode: str, replay_all: bool) -> int:
    """-> how many failed."""
    import wandb

    from lab.wandb_sync import offline_parts, plan, replay, sync

    failed, whole = 0, []
    for run in runs:
        what = "replay" if replay_all or mode == "offline" else plan(run)
        if what == "sync":
            whole += offline_parts(run)
        elif what == "replay":
            try:
                replay(run, mode)
                print(f"{os.path.relpath(run)}: written as one run")
            except (wandb.Error, OSError) as error:
                failed += 1
                print(f"failed: {os.path.relpath(run)}: {type(error).__name__}: {error}", file=sys.stderr)
        elif what == "running":
            print(f"{os.path.relpath(run)}: is running, later")
    if whole and sync(whole):
        failed += 1
        print("failed: wandb sync, see above", file=sys.stderr)
    print(f"{len(whole)} uploaded by wandb sync" if whole else "nothing more to upload")
    return failed


if __name__ == "__main__":
    sys.exit(main())
