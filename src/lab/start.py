"""Start a run: its directory, its processes, and what the user sees when one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from omegaconf import DictConfig

from lab import directory, distributed
from lab.config import HardwareConfig, TrainerConfig, typed
from lab.errors import ConfigError, RunFailed
from lab.hardware import count_processes
from lab.launch import run_processes
from lab.run import run


def start(cfg: DictConfig, run_dir: Path, overrides: list[str], own_process: bool, leave: Collection[str] = ()) -> None:
    """Run `cfg` (checked, resolved) in `run_dir`, or go on with the run that `run_dir` holds, to the end.

    own_process: a job of a multirun, which never shares a process with another. leave: a run whose status is one of
    these is left as it is. Raises ConfigError, RunFailed,
    KeyboardInterrupt or SystemExit as the run ended.
    """
    num_procs = count_processes(
        typed(HardwareConfig, cfg.hardware, "hardware"), typed(TrainerConfig, cfg.trainer, "trainer")
    )
    with directory.claimed(run_dir):
        if directory.read_json(run_dir / directory.STATUS).get("status") in leave:
            return
        before = directory.reopen(run_dir, cfg) if directory.holds_run(run_dir) else None
        if before is None:
            directory.fill(run_dir, cfg, overrides)
        try:
            if distributed.started_ranks() is not None:
                distributed.publish_directory(str(run_dir))
                run(run_dir)
            elif num_procs == 1 and not own_process:
                run(run_dir)
            else:
                run_processes(run, run_dir, num_procs)
        except KeyboardInterrupt:
            directory.write_status(run_dir, "interrupted", signal="SIGINT")
            raise
        except Exception as error:
            first = first_failure(run_dir)
            if before is not None and isinstance(first, ConfigError):
                directory.write_config(run_dir, before)  # a changed value that does not fit must not stay
            raise first from error
        end_as_signalled(run_dir)


def follow() -> int:
    """The life of a rank above 0 that torchrun started: wait for rank 0's directory, run there -> exit status."""
    run_dir = distributed.await_directory(timeout_s=600.0)
    if not run_dir:
        return 2  # rank 0 has said what is wrong with the configuration
    try:
        run(Path(run_dir))
    except Exception:
        record = directory.failure(Path(run_dir))
        if record is not None and record["rank"] == distributed.rank():  # rank 0 may be stuck, waiting for this one
            print(f"failed: {first_failure(Path(run_dir))}", file=sys.stderr)
        return 1
    return 0


def first_failure(run_dir: Path) -> Exception:
    """What went wrong first, on whichever rank, as one line; its traceback goes to stderr where it helps."""
    record = directory.failure(run_dir)
    if record is None:
        raise AssertionError(f"{run_dir} failed without a record")
    if record["type"] == "ConfigError":
        return ConfigError(record["message"])
    if record["type"] == "RunFailed":
        return RunFailed(f"{record['message']} ({run_dir})")
    print(f"rank {record['rank']} failed:\n{record['traceback']}", file=sys.stderr, end="")
    return RunFailed(f"the run failed; what it wrote is in {run_dir}")


def end_as_signalled(run_dir: Path) -> None:
    status = directory.read_json(run_dir / directory.STATUS)
    if status["status"] != "interrupted":
        return
    if status["signal"] == "SIGINT":
        raise KeyboardInterrupt
    raise SystemExit(143)
